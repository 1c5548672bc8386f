package ringnet

// The dialer's half of a proof: a link is taken only with a TCP connection that
// has come to the same listener, and that the listener ends without a byte. See
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

// proofWithin is how long a listener that has one half of a proof, the link or
// the TCP connection, waits for the other. A dialer waits for its word twice as
// long. A variable, for tests change it.
var proofWithin = 250 * time.Millisecond

// connectWithin is how long a link that has been answered waits for TCP to
// connect: for one SYN that is lost, which is repeated after a second (RFC 6298).
const connectWithin = 1500 * time.Millisecond

// Why a link is not taken though a listener has answered.
var (
	errElsewhere = errors.New("TCP leads to another listener")
	errUnsure    = errors.New("the listener does not show that TCP leads to it")
	errNoTCP     = errors.New("not connected when TCP had failed")
	errSlowTCP   = errors.New("TCP has not connected in time")
	errNoPort    = errors.New("no port for the TCP connection that proves a link")
)

// proof is a TCP connection from a port that is known before it is dialed. It
// belongs to one goroutine at a time, and closes nothing by itself.
type proof struct {
	ctx    context.Context // of the dial of TCP
	dialer net.Dialer
	remote netip.AddrPort
	within time.Duration // proofWithin

	local netip.Addr
	port  uint16
	start chan struct{} // closed when TCP is to be dialed
	begun bool          // it is
	done  chan struct{} // closed when conn or err is set
	conn  *net.TCPConn
	err   error

	spoilt bool // conn may have been ended by its peer: it is not for traffic
}

func newProof(ctx context.Context, dialer net.Dialer, remote netip.AddrPort) *proof {
	return &proof{ctx: ctx, dialer: dialer, remote: remote, within: proofWithin, start: make(chan struct{}), done: make(chan struct{})}
}

// reserve takes a port of a local address, from which TCP will be dialed.
func (p *proof) reserve(local netip.Addr) (uint16, error) {
	if p.port == 0 {
		if err := p.open(local); err != nil {
			return 0, err
		}
	}
	if local != p.local {
		return 0, fmt.Errorf("%w at %v: it is at %v", errNoPort, local, p.local)
	}
	return p.port, nil
}

// open binds a socket that stays unconnected until start is closed.
func (p *proof) open(local netip.Addr) error {
	select {
	case <-p.done:
		return p.err // it has been tried
	default:
	}
	bound := make(chan uint16, 1)
	dialer := p.dialer
	wanted, _ := addrPort(dialer.LocalAddr)
	if wanted.Port() == 0 {
		dialer.LocalAddr = nil // for a socket is bound once
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
			return errNoPort // package net tries once more, with another socket
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

// controlOf is what a dialer does to its sockets, in one of its two forms.
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

// connect dials TCP from the port that is reserved, for a link that is waiting.
func (p *proof) connect() error {
	if !p.begun {
		p.begun = true
		close(p.start)
	}
	timer := time.NewTimer(connectWithin)
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

// verify waits until the listener ends the connection, which shows that it has
// it, or ends the link. A link that is not proven is ended.
func (p *proof) verify(ctx context.Context, l *link.Link) error {
	err := p.await(ctx, l.Gone())
	if err != nil {
		l.Abort()
	}
	return err
}

// await returns nil if the connection ends without a byte while the link is there.
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

// stopWaiting ends awaitEnd, and returns what it has returned.
func (p *proof) stopWaiting(ended <-chan error) error {
	_ = p.conn.SetReadDeadline(time.Unix(1, 0))
	err := <-ended
	_ = p.conn.SetReadDeadline(time.Time{})
	return err
}

// carry returns the connection for traffic, or TCP's error, unless TCP has not
// been dialed, or is to be dialed anew: then both are nil.
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

// discard ends the connection, which nobody wants.
func (p *proof) discard() {
	if tcp, _ := p.carry(); tcp != nil {
		reset(tcp)
	}
}

// name has a link's request name the port of the proof, and its endpoint dial TCP
// by connect before it confirms.
func (p *proof) name(ep fabric.Endpoint, cfg link.Config, connect func() error) (fabric.Endpoint, link.Config, error) {
	port, err := p.reserve(ep.LocalAddr().Addr())
	if err != nil {
		_ = ep.Close()
		return nil, cfg, err
	}
	cfg.Proof = port
	return entrant{ep, connect}, cfg, nil
}

// entrant is an endpoint that confirms its connection once TCP is connected.
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

// makeLink makes a link and its first stream. Devices, and functions of users, may
// take their time: beyond the end of ctx it does not wait for them.
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

// dialLink makes a link and its first stream, proven if the attempt is not nil.
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

// dialEmpty makes one link more, with a proof of its own. It takes nothing of the
// attempt that changes, which may be over.
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
