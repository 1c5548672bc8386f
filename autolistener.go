package ringnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/rconn"
)

// AutoListener accepts connections of the network "auto": over TCP, and over
// whatever better network this machine has, all on one port. Its methods may be
// called at once.
type AutoListener struct {
	addr     Addr
	legs     []net.Listener // TCP first
	deadline *deadline.Deadline
	accepted chan accepted
	serving  sync.WaitGroup
	close    sync.Once
	closed   chan struct{}
	failed   chan struct{} // closed when TCP cannot accept any more
	err      error         // why; set before failed is closed

	mu         sync.Mutex // guards passedOver
	passedOver map[string]error
}

var _ net.Listener = (*AutoListener)(nil)

type accepted struct {
	conn stream
	err  error
}

// ports is how many free ports of TCP are tried for one that is free in every
// port space.
const ports = 16

// listenAuto binds TCP first, whose ports are the most likely to be in use, and
// then the same port of each better network: their port spaces are their own,
// so somebody else might sit there, and dialers would take him for this
// listener.
func (lc *ListenConfig) listenAuto(ctx context.Context, address string) (*AutoListener, net.Addr, error) {
	if _, _, err := lc.pending(); err != nil {
		return nil, nil, err
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, nil, err
	}
	for try := 1; ; try++ {
		l, addr, err := lc.listenOnAll(ctx, host, service)
		anyPort := service == "" || service == "0"
		if err == nil || !anyPort || !errors.Is(err, syscall.EADDRINUSE) || try == ports {
			return l, addr, err
		}
	}
}

func (lc *ListenConfig) listenOnAll(ctx context.Context, host, service string) (*AutoListener, net.Addr, error) {
	tcp, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, service))
	if err != nil {
		addr, err := bare(err)
		return nil, addr, err
	}
	addr := tcp.Addr().(*net.TCPAddr).AddrPort()
	l := &AutoListener{
		addr:     rconn.NewAddr("auto", addr),
		legs:     []net.Listener{tcp},
		deadline: deadline.New(),
		accepted: make(chan accepted),
		closed:   make(chan struct{}),
		failed:   make(chan struct{}),

		passedOver: make(map[string]error),
	}
	for _, network := range betterThanTCP {
		better, _, err := lc.listen(ctx, network, hostPort(host, addr))
		switch {
		case err == nil:
			l.legs = append(l.legs, better)
		case errors.Is(err, syscall.EADDRINUSE):
			_ = l.Close()
			return nil, l.addr, fmt.Errorf("%s: %w", network, err)
		default:
			l.passOver(network, err)
		}
	}
	for _, leg := range l.legs {
		l.serving.Go(func() { l.serve(leg) })
	}
	return l, nil, nil
}

// hostPort is the address that TCP got, with no host if none was named.
func hostPort(host string, addr netip.AddrPort) string {
	if host == "" {
		return ":" + strconv.Itoa(int(addr.Port()))
	}
	return addr.String()
}

// bare is what an error of package net, which is wrapped anew, is about.
func bare(err error) (net.Addr, error) {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Addr, op.Err
	}
	return nil, err
}

// serve hands on what a leg accepts. A better network that fails for good is
// missed by nobody who can dial TCP, once dialers are refused there; if TCP
// does, that is the listener's end.
func (l *AutoListener) serve(leg net.Listener) {
	for {
		c, err := leg.Accept()
		if temporary, ok := err.(interface{ Temporary() bool }); err != nil && !(ok && temporary.Temporary()) {
			_, err := bare(err)
			switch {
			case leg == l.legs[0]:
				l.err = err
				close(l.failed)
			case !l.isClosed():
				l.passOver(leg.Addr().Network(), err)
				_ = leg.Close() // unless somebody has
			}
			return
		}
		a := accepted{err: err}
		if err == nil {
			a.conn = c.(stream)
		}
		select {
		case l.accepted <- a:
		case <-l.closed:
			if err == nil {
				reset(a.conn)
			}
			return
		}
	}
}

// Accept waits for the next connection, until the deadline, and returns it: an
// *[AutoConn]. After Close it returns an error for which errors.Is(err,
// net.ErrClosed) holds.
func (l *AutoListener) Accept() (net.Conn, error) {
	c, err := l.accept()
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: "auto", Addr: l.addr, Err: err}
	}
	return &AutoConn{c, l.PassedOver()}, nil
}

func (l *AutoListener) accept() (stream, error) {
	if l.isClosed() {
		return nil, net.ErrClosed
	}
	if l.deadline.Expired() {
		return nil, os.ErrDeadlineExceeded
	}
	select {
	case a := <-l.accepted:
		_, err := bare(a.err)
		return a.conn, err
	case <-l.closed:
		return nil, net.ErrClosed
	case <-l.failed:
		return nil, l.err
	case <-l.deadline.Done():
		return nil, os.ErrDeadlineExceeded
	}
}

// Addr is the address listened on, an [Addr] of the network "auto", with the
// port in use.
func (l *AutoListener) Addr() net.Addr { return l.addr }

// PassedOver says why dialers are not offered networks that are better than
// TCP, or are no more, an error for each, the best first.
func (l *AutoListener) PassedOver() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var reasons []error
	for _, network := range betterThanTCP {
		if err := l.passedOver[network]; err != nil {
			reasons = append(reasons, fmt.Errorf("%s: %w", network, err))
		}
	}
	return reasons
}

func (l *AutoListener) passOver(network string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passedOver[network] = err
}

// SetDeadline makes Accept fail with os.ErrDeadlineExceeded from t on, an Accept
// under way included. The zero time means never.
func (l *AutoListener) SetDeadline(t time.Time) error {
	if l.isClosed() {
		return &net.OpError{Op: "set", Net: "auto", Addr: l.addr, Err: net.ErrClosed}
	}
	l.deadline.Set(t)
	return nil
}

func (l *AutoListener) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// Close stops listening. Connections that Accept has not returned are reset;
// those it has returned live on.
func (l *AutoListener) Close() error {
	err := error(&net.OpError{Op: "close", Net: "auto", Addr: l.addr, Err: net.ErrClosed})
	l.close.Do(func() {
		close(l.closed)
		err = nil
		for _, leg := range l.legs {
			// Legs that have failed are closed already.
			if _, failed := bare(leg.Close()); failed != nil && !errors.Is(failed, net.ErrClosed) && err == nil {
				err = &net.OpError{Op: "close", Net: "auto", Addr: l.addr, Err: failed}
			}
		}
		l.deadline.Set(time.Time{})
		l.serving.Wait()
	})
	return err
}
