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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
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

	ctx    context.Context // ends when the listener is closed
	cancel context.CancelFunc

	mu      sync.Mutex // guards silent, and orders adding to queue before closing
	silent  []*request // the oldest first
	readers sync.WaitGroup
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
	local = plain(local)
	if local.Addr().IsValid() {
		if err := checkLocal(local.Addr()); err != nil {
			return nil, fmt.Errorf("shm: listen at %v: %w", local, err)
		}
	}
	s, local, err := f.listenAt(local)
	if err != nil {
		return nil, fmt.Errorf("shm: listen at %v: %w", local, err)
	}
	l := &listener{
		f:     f,
		sock:  s,
		at:    local,
		queue: make(chan *endpoint, max(backlog, 1)),
		done:  make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	go l.serve()
	return l, nil
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
	if l.ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	select {
	case e := <-l.queue:
		return e, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	case <-l.done:
		return nil, l.err
	}
}

// Close implements [fabric.Listener].
func (l *listener) Close() error {
	l.mu.Lock()
	wasClosed := l.ctx.Err() != nil
	l.cancel()
	l.mu.Unlock()
	if wasClosed {
		return net.ErrClosed
	}
	l.sock.wake()
	<-l.done
	// The kernel would close what it has queued, and whatever is queued there.
	for fd, err := l.take(); err == nil; fd, err = l.take() {
		l.drop(fd)
	}
	err := l.sock.file.Close()
	l.readers.Wait()
	for {
		select {
		case e := <-l.queue:
			e.Close()
		default:
			return err
		}
	}
}

// serve accepts connections and has their requests read. Nothing that a dialer
// does ends it or keeps it waiting.
func (l *listener) serve() {
	defer func() {
		// Who dials from now on is refused at once.
		_ = unix.Shutdown(l.sock.fd, unix.SHUT_RDWR)
		close(l.done)
	}()
	const shortest, longest = 5 * time.Millisecond, time.Second
	pause := shortest
	for {
		fd, err := l.next()
		switch {
		case l.ctx.Err() != nil:
			if err == nil {
				l.drop(fd)
			}
			l.err = net.ErrClosed
			return
		case err == nil:
			pause = shortest
			l.begin(fd)
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.ENOMEM):
			// The connection stays in the kernel's queue, and nothing says when
			// there will be room for it: as net/http does, look again later.
			select {
			case <-time.After(pause):
			case <-l.ctx.Done():
			}
			pause = min(2*pause, longest)
		case errors.Is(err, syscall.EINTR), errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.EAGAIN):
		default:
			l.err = err
			return
		}
	}
}

// next waits for a connection, or for Close.
func (l *listener) next() (fd int, err error) {
	if l.sock.rights {
		if err := l.sock.closer.admit(); err != nil {
			return 0, err
		}
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

// drop closes a connection that was taken.
func (l *listener) drop(fd int) {
	if s, err := l.accepted(fd); err == nil {
		s.close()
	}
}

// begin has the request of a new connection read, if its process may connect.
func (l *listener) begin(fd int) {
	s, err := l.accepted(fd)
	if err != nil {
		return
	}
	e := newEndpoint(l.f, s, l.at, netip.AddrPort{})
	e.passive = true
	if err := l.f.trust(s, false); err != nil {
		e.refuse(reasonUnsupported, err.Error())
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

// read receives a request and puts it into the queue.
func (l *listener) read(r *request) {
	err := r.e.readRequest(r.ctx, l.at)
	r.cancel()

	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = slices.DeleteFunc(l.silent, func(s *request) bool { return s == r })
	if l.ctx.Err() != nil {
		r.e.refuse(fabric.RejectConsumer, "")
		return
	}
	if errors.Is(err, context.Canceled) {
		r.e.turnAway() // it had to make room for another
		return
	}
	if err != nil {
		r.e.refuse(reasonUnsupported, err.Error())
		return
	}
	select {
	case l.queue <- r.e:
	default:
		r.e.turnAway()
	}
}
