//go:build linux

package shm

// The passive side, until it has read a connection's request.

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
	"github.com/ringnet/ringnet/internal/netns"
	"github.com/ringnet/ringnet/internal/wire"
)

const (
	// requestTimeout is how long a dialer may take to send its request once it
	// has connected. It has the request ready by then.
	requestTimeout = 5 * time.Second

	// maxRequests is how many connections may wait for their dialers' requests. One
	// more ends the oldest of the user who has most of them.
	maxRequests = 256

	// socketBacklog is how many connections the kernel queues for the listener's
	// goroutine; net.core.somaxconn may make it fewer.
	socketBacklog = 4096
)

// listener implements [fabric.Listener].
type listener struct {
	f    *shm
	sock *socket
	at   netip.AddrPort // with the zero Addr: all addresses of both families

	// namespace is that whose addresses the listener's and the dialers' are.
	namespace *netns.Entry

	// queue holds the requests that Accept has not returned; its capacity is
	// the backlog.
	queue chan *endpoint

	done chan struct{} // closed when serve has ended
	err  error         // why it has; set before done is closed

	ctx    context.Context // ends when the listener does
	cancel context.CancelFunc
	closed atomic.Bool

	readers sync.WaitGroup

	// spare is a descriptor that serve keeps, to accept a connection that it refuses when the
	// process has no other; -1: there is none.
	spare int

	mu       sync.Mutex // guards requests
	requests []*request // the oldest first
}

// request is a connection whose request has not been read yet.
type request struct {
	e      *endpoint
	uid    uint32 // the dialer's user
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
	namespace, err := netns.Current().Enter()
	if err != nil {
		return nil, err
	}
	s, local, err := f.listenAt(local)
	if err != nil {
		namespace.Close()
		return nil, err
	}
	return f.newListener(s, local, backlog, namespace), nil
}

// newListener returns a listener with a socket that listens at an address, in a network namespace.
func (f *shm) newListener(s *socket, at netip.AddrPort, backlog int, namespace *netns.Entry) *listener {
	l := &listener{
		f:         f,
		sock:      s,
		at:        at,
		namespace: namespace,
		queue:     make(chan *endpoint, max(backlog, 1)),
		done:      make(chan struct{}),
		spare:     newSpare(),
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
	l.sock.sleeper.Wake()
	<-l.done
	l.namespace.Close()
	return l.sock.close()
}

// serve is the listener's goroutine.
func (l *listener) serve() {
	l.err = l.acceptAll()
	l.cancel()
	l.refuseAll()
	if l.spare >= 0 {
		_ = unix.Close(l.spare)
	}
	close(l.done)
}

// refuseAll refuses the connections that Accept has not returned, and those that
// are dialed from now on.
func (l *listener) refuseAll() {
	shut := unix.Shutdown(l.sock.fd, unix.SHUT_RDWR)
	fd, err := l.sock.accept()
	for ; err == nil; fd, err = l.sock.accept() {
		l.drop(fd)
	}
	if shut == nil && err == unix.EAGAIN {
		l.sock.rights = false // the kernel's queue is empty, and stays so
	}
	l.readers.Wait()
	for len(l.queue) > 0 {
		select {
		case e := <-l.queue:
			e.rejectAndClose(errListenerClosed)
		default: // Accept was faster
		}
	}
}

// acceptAll accepts connections and starts a goroutine for each, to read its
// request. No dialer can end it or keep it waiting.
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
			if l.spare < 0 {
				l.spare = newSpare()
			}
			l.admit(fd)
		case errors.Is(err, syscall.EINTR), errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.EAGAIN):
		case exhausted(err) && l.refuseExhausted(err):
			pause = shortest
		case exhausted(err):
			// The connection stays in the kernel's queue, and no event reports when
			// there is room for it: try again later, as net/http does.
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

// refuseExhausted accepts the next connection in place of the spare descriptor, tells its dialer that
// there is no other, and reports whether it has.
func (l *listener) refuseExhausted(cause error) bool {
	if l.spare < 0 {
		l.spare = newSpare() // the last that was refused is closed by now, perhaps
	}
	if l.spare < 0 {
		return false
	}
	_ = unix.Close(l.spare)
	fd, err := l.sock.accept()
	if err == nil {
		why := wire.Reject{Busy: true, Reason: cause.Error()}
		f := frame{kind: rej, reason: fabric.RejectConsumer, private: why.Append(nil)}
		_ = unix.Send(fd, f.encode(), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		l.sock.closeAccepted(fd)
	}
	l.spare = newSpare()
	return err == nil
}

// newSpare returns a descriptor of nothing, or -1 if there is none.
func newSpare() int {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return -1
	}
	return fd
}

// next waits for a connection, or for Close.
func (l *listener) next() (fd int, err error) {
	if err := l.sock.closer.admit(); err != nil {
		return 0, err
	}
	err = unix.EAGAIN
	waitErr := l.sock.sleeper.Sleep(func(uintptr) bool {
		if !l.sock.readable() { // accept would say that there is no descriptor before it looked for a connection
			return false
		}
		fd, err = l.sock.accept()
		return err != unix.EAGAIN
	})
	if waitErr != nil {
		return 0, waitErr
	}
	return fd, os.NewSyscallError("accept4", err)
}

// passive returns the endpoint of a connection that was accepted. Its peer can queue descriptors
// at its socket if it could at the listener's.
func (l *listener) passive(fd int, uid uint32) (*endpoint, error) {
	s, err := pollSocket(fd, l.sock.rights, l.sock.closer)
	if err != nil {
		return nil, err
	}
	e := newEndpoint(l.f, s, l.at, netip.AddrPort{})
	e.passive, e.user, e.calls = true, uid, closer{callsOf{l.sock, uid}}
	return e, nil
}

// drop refuses a connection that was accepted.
func (l *listener) drop(fd int) {
	if e, err := l.passive(fd, 0); err == nil {
		e.rejectAndClose(errListenerClosed)
	}
}

// toStranger is the REJ for dialers of users whom the listener does not trust.
var toStranger = (&frame{kind: rej, reason: fabric.RejectStranger}).encode()

// admit goes on with a new connection if its user may be trusted. Any process of this host can
// connect, so those of other users cost little: no goroutine, no lock, and no memory.
func (l *listener) admit(fd int) {
	c, err := credentials(fd)
	if err == nil && l.f.mayAdmit(c.Uid) {
		l.addRequest(fd, c.Uid)
		return
	}
	_ = unix.Send(fd, toStranger, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	l.sock.closeAccepted(fd)
}

// addRequest starts the goroutine that reads the request of a new connection, and ends another
// connection without one if there are more than maxRequests.
func (l *listener) addRequest(fd int, uid uint32) {
	e, err := l.passive(fd, uid)
	if err != nil {
		return
	}
	if e.calls.admit() != nil {
		e.rejectAndClose(wire.Full)
		return
	}
	r := &request{e: e, uid: uid}
	r.ctx, r.cancel = context.WithTimeout(l.ctx, l.f.requestTimeout)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, r)
	if len(l.requests) > maxRequests {
		i := l.oldestOfMost()
		l.requests[i].cancel()
		l.requests = slices.Delete(l.requests, i, i+1)
	}
	l.readers.Add(1)
	read := func() {
		defer l.readers.Done()
		l.read(r)
	}
	if l.namespace.Go(read) != nil {
		r.cancel() // the kernel has no thread to spare
		go read()
	}
}

// oldestOfMost returns the index of the oldest request of the user who has most of them. Called
// with mu held.
func (l *listener) oldestOfMost() int {
	count := make(map[uint32]int)
	for _, r := range l.requests {
		count[r.uid]++
	}
	most := 0
	for i, r := range l.requests {
		if count[r.uid] > count[l.requests[most].uid] {
			most = i
		}
	}
	return most
}

// read receives the request of a connection whose user is trusted, and queues the
// connection for Accept.
func (l *listener) read(r *request) {
	err := l.f.judge(r.ctx, r.uid, false)
	if err == nil {
		err = r.e.readRequest(r.ctx, l.at)
	}
	r.cancel()
	l.mu.Lock()
	l.requests = slices.DeleteFunc(l.requests, func(s *request) bool { return s == r })
	l.mu.Unlock()
	switch {
	case l.ctx.Err() != nil:
		r.e.rejectAndClose(errListenerClosed)
	case errors.Is(err, context.Canceled):
		r.e.rejectAndClose(wire.Full) // a newer connection has its place
	case err != nil:
		r.e.refuse(err)
		_ = r.e.Close()
	default:
		select {
		case l.queue <- r.e:
		default:
			r.e.rejectAndClose(wire.Full)
		}
	}
}
