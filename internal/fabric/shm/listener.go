//go:build linux

package shm

// The passive side up to a request.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

const (
	// requestTimeout is what a dialer may take to send its request once it has
	// connected. It has it ready by then.
	requestTimeout = 5 * time.Second

	// maxSilent is how many may be connected and not have sent their request.
	// Beyond that the one that has been silent for longest goes.
	maxSilent = 256

	// socketBacklog is what waits in the kernel for the listener's goroutine;
	// net.core.somaxconn may make it less.
	socketBacklog = 4096
)

// listener implements [fabric.Listener].
type listener struct {
	f    *shm
	sock *socket
	at   netip.AddrPort // the zero Addr for all of both families

	// queue holds the requests that Accept has not returned; its capacity is
	// the backlog.
	queue chan *endpoint

	done chan struct{} // closed when serve has ended
	err  error         // why it ended, set before

	ctx    context.Context // ends when the listener does
	cancel context.CancelFunc
	closed atomic.Bool

	readers sync.WaitGroup

	mu     sync.Mutex // guards silent
	silent []*request // the oldest first
}

// request is a connection whose dialer has not said what it wants.
type request struct {
	e      *endpoint
	ctx    context.Context
	cancel context.CancelFunc
}

var _ fabric.Listener = (*listener)(nil)

// Listen implements [fabric.Fabric].
func (f *shm) Listen(local netip.AddrPort, backlog int) (fabric.Listener, error) {
	local = fabric.Plain(local)
	if local.Addr().IsValid() {
		if err := checkLocal(local.Addr()); err != nil {
			return nil, fmt.Errorf("listen at %v: %w", local, err)
		}
	}
	s, local, err := f.listenAt(local)
	if err != nil {
		return nil, err
	}
	return f.newListener(s, local, backlog), nil
}

// newListener takes over a socket that listens at an address.
func (f *shm) newListener(s *socket, at netip.AddrPort, backlog int) *listener {
	l := &listener{
		f:     f,
		sock:  s,
		at:    at,
		queue: make(chan *endpoint, max(backlog, 1)),
		done:  make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	go l.serve()
	return l
}

// Addr implements [fabric.Listener].
func (l *listener) Addr() netip.AddrPort {
	if !l.at.Addr().IsValid() {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), l.at.Port())
	}
	return l.at
}

// Accept implements [fabric.Listener].
func (l *listener) Accept() (fabric.Endpoint, error) {
	if l.closed.Load() {
		return nil, net.ErrClosed
	}
	select {
	case e := <-l.queue:
		return e, nil
	case <-l.done:
		return nil, l.err
	}
}

// Close implements [fabric.Listener].
func (l *listener) Close() error {
	if l.closed.Swap(true) {
		return net.ErrClosed
	}
	l.cancel()
	l.sock.wake()
	<-l.done
	return l.sock.close()
}

// serve is the listener's life.
func (l *listener) serve() {
	l.err = l.acceptAll()
	l.cancel()
	l.refuseAll()
	close(l.done)
}

// refuseAll refuses whoever has connected and has not been returned by Accept,
// and whoever dials from now on.
func (l *listener) refuseAll() {
	shut := unix.Shutdown(l.sock.fd, unix.SHUT_RDWR)
	fd, err := l.take()
	for ; err == nil; fd, err = l.take() {
		l.drop(fd)
	}
	if shut == nil && err == unix.EAGAIN {
		l.sock.rights = false // nobody is left in the kernel's queue, and nobody joins it
	}
	l.readers.Wait()
	for len(l.queue) > 0 {
		select {
		case e := <-l.queue:
			e.turnAway(errListenerClosed)
		default: // Accept was faster
		}
	}
}

// acceptAll accepts connections and has their requests read. Nothing that a
// dialer does ends it or keeps it waiting.
func (l *listener) acceptAll() error {
	const shortest, longest = 5 * time.Millisecond, time.Second
	pause := shortest
	for {
		fd, err := l.next()
		switch {
		case l.ctx.Err() != nil:
			if err == nil {
				l.drop(fd)
			}
			return net.ErrClosed
		case err == nil:
			pause = shortest
			l.begin(fd)
		case errors.Is(err, syscall.EINTR), errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.EAGAIN):
		case exhausted(err), l.f.persistent:
			// The connection stays in the kernel's queue, and nothing says when
			// there will be room for it: as net/http does, look again later.
			select {
			case <-time.After(pause):
			case <-l.ctx.Done():
			}
			pause = min(2*pause, longest)
		default:
			return err
		}
	}
}

// next waits for a connection, or for Close.
func (l *listener) next() (fd int, err error) {
	if err := l.sock.closer.admit(); err != nil {
		return 0, err
	}
	err = unix.EAGAIN
	waitErr := l.sock.wait(func(uintptr) bool {
		fd, err = l.take()
		return err != unix.EAGAIN
	})
	if waitErr != nil {
		return 0, waitErr
	}
	return fd, os.NewSyscallError("accept4", err)
}

// take takes a connection from the kernel's queue, if there is one.
func (l *listener) take() (fd int, err error) {
	fd, _, err = unix.Accept4(l.sock.fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	return fd, err
}

// accepted is the socket of a connection that was taken. What the peer can do to
// it follows from the listener's.
func (l *listener) accepted(fd int) (*socket, error) {
	return pollSocket(fd, l.sock.rights, l.sock.closer)
}

// passive is the endpoint of a connection that was taken.
func (l *listener) passive(fd int) (*endpoint, error) {
	s, err := l.accepted(fd)
	if err != nil {
		return nil, err
	}
	e := newEndpoint(l.f, s, l.at, netip.AddrPort{})
	e.passive = true
	return e, nil
}

// drop refuses a connection that was taken.
func (l *listener) drop(fd int) {
	if e, err := l.passive(fd); err == nil {
		e.turnAway(errListenerClosed)
	}
}

// begin has a new connection judged and its request read.
func (l *listener) begin(fd int) {
	e, err := l.passive(fd)
	if err != nil {
		return
	}
	r := &request{e: e}
	r.ctx, r.cancel = context.WithTimeout(l.ctx, l.f.requestTimeout)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = append(l.silent, r)
	if len(l.silent) > maxSilent {
		l.silent[0].cancel()
		l.silent = l.silent[1:]
	}
	l.readers.Go(func() { l.read(r) })
}

// read receives a request, if its process may connect, and puts it into the
// queue.
func (l *listener) read(r *request) {
	err := l.f.trust(r.ctx, r.e.sock, false)
	if err == nil {
		err = r.e.readRequest(r.ctx, l.at)
	}
	r.cancel()
	l.mu.Lock()
	l.silent = slices.DeleteFunc(l.silent, func(s *request) bool { return s == r })
	l.mu.Unlock()
	switch {
	case l.ctx.Err() != nil:
		r.e.turnAway(errListenerClosed)
	case errors.Is(err, context.Canceled), exhausted(err):
		r.e.turnAway(wire.Full) // it had to make room for another, or there is none
	case err != nil:
		r.e.refuse(reasonUnsupported, err.Error())
	default:
		select {
		case l.queue <- r.e:
		default:
			r.e.turnAway(wire.Full)
		}
	}
}
