package auto

// The dialer's half of a proof. The dialer takes a link only if a TCP connection has reached
// the same listener; the listener shows that by closing the connection without a byte. See
// docs/auto.md.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/netns"
	"github.com/ringnet/ringnet/internal/transport"
)

var errNoPort = errors.New("no port for the TCP connection that proves a link")

// proof is a TCP connection whose local port is known before it is dialed. It belongs to one
// goroutine at a time.
type proof struct {
	ctx       context.Context // of the dial of TCP
	dialer    net.Dialer      // of TCP
	remote    netip.AddrPort
	times     Times
	namespace netns.Namespace // to dial in

	local netip.Addr
	port  uint16        // 0: none is bound
	start chan struct{} // closed when TCP is to be dialed
	done  chan struct{} // closed when conn or err is set; nil: nothing has been begun
	conn  *net.TCPConn
	err   error
}

func newProof(ctx context.Context, tcp net.Dialer, remote netip.AddrPort, times Times, in netns.Namespace) *proof {
	return &proof{ctx: ctx, dialer: tcp, remote: remote, times: times, namespace: in, start: make(chan struct{})}
}

// reserve binds a port of a local address, from which TCP will be dialed, and returns it.
func (p *proof) reserve(local netip.Addr) (uint16, error) {
	if p.done == nil {
		p.open(local)
	}
	switch {
	case p.port == 0:
		<-p.done
		return 0, p.err
	case local != p.local:
		return 0, fmt.Errorf("%w at %v: the TCP connection is at %v", errNoPort, local, p.local)
	}
	return p.port, nil
}

// open binds a socket in the background. It is connected only when start is closed.
func (p *proof) open(local netip.Addr) {
	p.local, p.done = local, make(chan struct{})
	bound := make(chan uint16, 1)
	dialer := p.dialer
	var wanted uint16
	if a, ok := dialer.LocalAddr.(*net.TCPAddr); ok {
		wanted = uint16(a.Port)
	}
	if wanted == 0 {
		dialer.LocalAddr = nil // bindAnyPort binds the socket, and it can be bound only once
	}
	control := controlOf(&dialer)
	dialer.ControlContext = func(ctx context.Context, network, address string, c syscall.RawConn) error {
		if err := control(ctx, network, address, c); err != nil {
			return err
		}
		port := wanted
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
	err := p.namespace.Go(func() {
		defer close(p.done)
		c, err := dialer.DialContext(p.ctx, "tcp", p.remote.String())
		if p.err = err; err == nil {
			p.conn = c.(*net.TCPConn)
		}
	})
	if err != nil {
		p.err = err
		close(p.done)
	}
	select {
	case p.port = <-bound:
	case <-p.done:
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
	close(p.start)
	timer := time.NewTimer(p.times.Connect)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		return ErrSlowTCP
	}
	if p.err != nil {
		return ErrNoTCP
	}
	return nil
}

// await waits until the listener closes the TCP connection, without having sent a byte, which
// proves the link. Otherwise it returns why the link is not proven, and whether the connection
// can carry traffic.
func (p *proof) await(ctx context.Context, linkEnded <-chan struct{}) (state, error) {
	ended := make(chan error, 1)
	go func() { ended <- awaitEnd(p.conn) }()
	timer := time.NewTimer(2 * p.times.Proof)
	defer timer.Stop()
	var why, end error
	select {
	case end = <-ended:
	case <-linkEnded:
		why, end = ErrElsewhere, p.stopWaiting(ended)
	case <-timer.C:
		why, end = ErrUnsure, p.stopWaiting(ended)
	case <-ctx.Done():
		why, end = ctx.Err(), p.stopWaiting(ended)
	}
	switch {
	case end == nil && why == nil:
		transport.Reset(p.conn)
		return proven, nil
	case end == errData, why == ErrElsewhere && errors.Is(end, os.ErrDeadlineExceeded):
		return refused, ErrElsewhere
	}
	return unsure, cmp.Or(why, ErrUnsure)
}

// stopWaiting makes awaitEnd return, and returns its result.
func (p *proof) stopWaiting(ended <-chan error) error {
	_ = p.conn.SetReadDeadline(time.Unix(1, 0))
	err := <-ended
	_ = p.conn.SetReadDeadline(time.Time{})
	return err
}

// discard closes the TCP connection when it has been dialed, or its context has ended.
func (p *proof) discard() {
	if p.done == nil {
		return
	}
	<-p.done
	if p.conn != nil {
		transport.Reset(p.conn)
	}
}
