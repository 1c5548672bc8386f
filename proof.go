package ringnet

// The dialer's half of a proof. The dialer takes a link only if a TCP connection has reached
// the same listener; the listener shows that by closing the connection without a byte. See
// docs/auto.md.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
)

// proofWithin is how long a listener that has one half of a proof, the link or the TCP
// connection, waits for the other half. A dialer waits twice as long for the listener to close
// the TCP connection. It is a variable because tests change it.
var proofWithin = 250 * time.Millisecond

// connectWithin is how long a link whose request has been answered waits for TCP to connect.
// One SYN may be lost in that time, which TCP repeats after a second (RFC 6298).
var connectWithin = 1500 * time.Millisecond

// Why a link is not taken although a listener has answered.
var (
	errElsewhere = errors.New("TCP leads to another listener")
	errUnsure    = errors.New("the listener has not proved that TCP leads to it")
	errNoTCP     = errors.New("TCP failed before this network was connected")
	errSlowTCP   = errors.New("TCP has not connected in time")
	errNoPort    = errors.New("no port for the TCP connection that proves a link")
)

// proof is a TCP connection whose local port is known before it is dialed. It belongs to one
// goroutine at a time. It does not close the connection by itself, unless carry or discard
// find that it is of no use.
type proof struct {
	ctx      context.Context // of the dial of TCP
	dialer   net.Dialer
	remote   netip.AddrPort
	within   time.Duration // proofWithin
	connects time.Duration // connectWithin

	local netip.Addr
	port  uint16
	start chan struct{} // closed when TCP is to be dialed
	begun bool          // start is closed
	done  chan struct{} // closed when conn or err is set
	conn  *net.TCPConn
	err   error

	spoilt bool // the listener may have closed conn, so it cannot carry traffic
}

func newProof(ctx context.Context, dialer net.Dialer, remote netip.AddrPort) *proof {
	return &proof{ctx: ctx, dialer: dialer, remote: remote, within: proofWithin, connects: connectWithin,
		start: make(chan struct{}), done: make(chan struct{})}
}

// reserve binds a port of a local address, from which TCP will be dialed, and returns it.
func (p *proof) reserve(local netip.Addr) (uint16, error) {
	if p.port == 0 {
		if err := p.open(local); err != nil {
			return 0, err
		}
	}
	if local != p.local {
		return 0, fmt.Errorf("%w at %v: the TCP connection is at %v", errNoPort, local, p.local)
	}
	return p.port, nil
}

// open binds a socket in the background. It is connected only when start is closed.
func (p *proof) open(local netip.Addr) error {
	select {
	case <-p.done:
		return p.err // open was called before, and has failed
	default:
	}
	bound := make(chan uint16, 1)
	dialer := p.dialer
	wanted, _ := addrPort(dialer.LocalAddr)
	if wanted.Port() == 0 {
		dialer.LocalAddr = nil // bindAnyPort binds the socket, and it can be bound only once
	}
	control := controlOf(&dialer)
	dialer.ControlContext = func(ctx context.Context, network, address string, c syscall.RawConn) error {
		if err := control(ctx, network, address, c); err != nil {
			return err
		}
		port := wanted.Port()
		if port == 0 {
			var err error
			if port, err = bindAnyPort(c, local); err != nil {
				return fmt.Errorf("%w: %w", errNoPort, err)
			}
		}
		select {
		case bound <- port:
		default:
			return errNoPort // package net has made a second socket
		}
		select {
		case <-p.start:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	go func() {
		defer close(p.done)
		c, err := dialer.DialContext(p.ctx, "tcp", p.remote.String())
		if p.err = err; err == nil {
			p.conn = c.(*net.TCPConn)
		}
	}()
	select {
	case p.port = <-bound:
		p.local = local
		return nil
	case <-p.done:
		return p.err
	}
}

// controlOf returns the function that a dialer calls with its sockets, whichever of its two
// fields has it.
func controlOf(d *net.Dialer) func(context.Context, string, string, syscall.RawConn) error {
	switch {
	case d.ControlContext != nil:
		return d.ControlContext
	case d.Control != nil:
		control := d.Control
		return func(_ context.Context, network, address string, c syscall.RawConn) error {
			return control(network, address, c)
		}
	}
	return func(context.Context, string, string, syscall.RawConn) error { return nil }
}

// connect dials TCP from the port that is reserved, and waits until it is connected.
func (p *proof) connect() error {
	if !p.begun {
		p.begun = true
		close(p.start)
	}
	timer := time.NewTimer(p.connects)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		return errSlowTCP
	}
	if p.err != nil {
		return errNoTCP
	}
	return nil
}

// verify waits until the listener closes the TCP connection, which proves the link. If it does
// not, verify ends the link and returns why.
func (p *proof) verify(ctx context.Context, l *link.Link) error {
	err := p.await(ctx, l.Gone())
	if err != nil {
		l.Abort()
	}
	return err
}

// await returns nil if the listener closes the TCP connection, without having sent a byte,
// before the link ends.
func (p *proof) await(ctx context.Context, gone <-chan struct{}) error {
	ended := make(chan error, 1)
	go func() { ended <- awaitEnd(p.conn) }()
	timer := time.NewTimer(2 * p.within)
	defer timer.Stop()
	var why, end error
	select {
	case end = <-ended:
	case <-gone:
		why, end = errElsewhere, p.stopWaiting(ended)
	case <-timer.C:
		why, end = errUnsure, p.stopWaiting(ended)
	case <-ctx.Done():
		why, end = ctx.Err(), p.stopWaiting(ended)
	}
	switch {
	case end == nil && why == nil:
		reset(p.conn)
		return nil
	case end == errData:
		return errElsewhere
	case why != errElsewhere || end != errStopped:
		p.spoilt = true
	}
	if why == nil {
		why = errUnsure
	}
	return why
}

// stopWaiting makes awaitEnd return, and returns its result.
func (p *proof) stopWaiting(ended <-chan error) error {
	_ = p.conn.SetReadDeadline(time.Unix(1, 0))
	err := <-ended
	_ = p.conn.SetReadDeadline(time.Time{})
	return err
}

// carry returns the TCP connection for traffic, or the error of TCP. Both are nil if TCP has
// not been dialed, or has to be dialed again.
func (p *proof) carry() (*net.TCPConn, error) {
	if !p.begun {
		return nil, nil
	}
	<-p.done
	switch {
	case p.err != nil && errors.Is(p.err, errNoPort):
		return nil, nil
	case p.spoilt:
		reset(p.conn)
		return nil, nil
	}
	return p.conn, p.err
}

// discard closes the TCP connection, if there is one.
func (p *proof) discard() {
	if tcp, _ := p.carry(); tcp != nil {
		reset(tcp)
	}
}

// name returns a configuration whose request names the port of the proof, and an endpoint that
// calls connect, which dials TCP, before it confirms. If it fails it closes ep.
func (p *proof) name(ep fabric.Endpoint, cfg link.Config, connect func() error) (fabric.Endpoint, link.Config, error) {
	port, err := p.reserve(ep.LocalAddr().Addr())
	if err != nil {
		_ = ep.Close()
		return nil, cfg, err
	}
	cfg.Proof = port
	return entrant{ep, connect}, cfg, nil
}

// entrant is an endpoint that confirms its connection only when TCP is connected.
type entrant struct {
	fabric.Endpoint
	connect func() error
}

func (e entrant) Unwrap() fabric.Endpoint { return e.Endpoint }

func (e entrant) Confirm() error {
	if err := e.connect(); err != nil {
		return err
	}
	return e.Endpoint.Confirm()
}

// makeLink makes a link and its first stream. Devices and functions of users may be slow:
// when ctx ends, makeLink returns, and a goroutine closes what they still make.
func (a *attempt) makeLink(ctx context.Context, request func(context.Context) (*link.Stream, error)) (*link.Stream, error) {
	if a == nil {
		return request(ctx)
	}
	var s *link.Stream
	var err error
	made := make(chan struct{})
	go func() {
		defer close(made)
		s, err = request(ctx)
	}()
	select {
	case <-made:
		return s, err
	case <-ctx.Done():
	}
	a.abandoned = true
	go func() {
		<-made
		if s != nil {
			s.Link().Abort()
			_ = s.Close(0)
		}
		a.proof.discard()
	}()
	return nil, ctx.Err()
}

// dialLink makes a link and its first stream. Unless the attempt is nil, the link is proven.
func (a *attempt) dialLink(ctx context.Context, ep fabric.Endpoint, cfg link.Config) (*link.Stream, error) {
	if a == nil {
		return link.Dial(ctx, ep, cfg)
	}
	ep, cfg, err := a.proof.name(ep, cfg, a.prove)
	if err != nil {
		return nil, err
	}
	s, err := link.Dial(ctx, ep, cfg)
	if err != nil {
		return nil, err
	}
	if err := a.proof.verify(ctx, s.Link()); err != nil {
		_ = s.Close(0)
		return nil, err
	}
	return s, nil
}

// dialEmpty makes a link without a stream, with a proof of its own. The attempt may have ended
// by then, so dialEmpty uses none of its fields that change.
func (a *attempt) dialEmpty(ctx context.Context, ep fabric.Endpoint, cfg link.Config) (*link.Link, error) {
	if a == nil {
		return link.DialEmpty(ctx, ep, cfg)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := newProof(ctx, a.tcp, a.remote)
	ep, cfg, err := p.name(ep, cfg, p.connect)
	if err != nil {
		return nil, err
	}
	l, err := link.DialEmpty(ctx, ep, cfg)
	if err == nil {
		err = p.verify(ctx, l)
	}
	if err == nil {
		return l, nil
	}
	cancel()
	p.discard()
	return nil, err
}
