//go:build linux

package shm

// How two queue pairs find each other.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// reasonUnsupported is REJ reason 5, "unsupported request": the fabric refuses,
// not who uses it.
const reasonUnsupported = 5

// errAnother ends a handshake whose peer says something out of turn.
var errAnother = fmt.Errorf("the peer broke the handshake: %w", syscall.EPROTO)

// Connect implements [fabric.Endpoint].
func (e *endpoint) Connect(ctx context.Context, private []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if e.passive || e.step != idle || e.limits.RecvQueue == 0 || len(private) > fabric.MaxConnectData {
		return nil, fmt.Errorf("connect: %w", syscall.EINVAL)
	}
	if err := e.sock.closer.admit(); err != nil {
		return nil, fmt.Errorf("the listener at %v: %w", e.remote, err)
	}
	if err := e.reach(ctx); err != nil {
		return nil, err
	}
	if err := e.wantDescriptor(); err != nil {
		return nil, err
	}
	e.step = requested
	// A listener that has refused already has closed its end, and what it said
	// is there to be received.
	err := e.sock.send((&frame{kind: req, shape: e.shape, source: e.local, target: e.remote, private: private}).encode(), -1)
	if err != nil && !hungUp(err) {
		return nil, err
	}
	f, fd, err := e.receive(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.adopt(f, fd); err != nil {
		return nil, err
	}
	if err := e.wantNoMore(ctx); err != nil {
		return nil, err
	}
	e.step = answered
	return fabric.Padded(f.private, fabric.MaxAcceptData), nil
}

// reach connects the socket to a trusted listener that hears the address.
func (e *endpoint) reach(ctx context.Context) error {
	const shortest, longest = time.Millisecond, 100 * time.Millisecond
	for pause := shortest; ; pause = min(2*pause, longest) {
		err := e.reachNow(ctx)
		if err != errBusy {
			return err
		}
		// Waiting for room in the kernel would hold a thread. TCP too repeats
		// its SYN after a while.
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Why a dialer reaches no listener: nobody listens, or the kernel's queue of one
// that is trusted is full.
var (
	errNobody = &fabric.RejectError{Reason: fabric.RejectNoListener}
	errBusy   = errors.New("the listener's queue is full")
)

// reachNow connects with the best listener that is trusted. The kernel is asked
// for all that there are only if this user has none by a plain name, for that
// takes the longer the more sockets this host has.
func (e *endpoint) reachNow(ctx context.Context) error {
	if e.at != "" {
		return e.reachFirst([]string{e.at}, true)
	}
	own := os.Geteuid()
	if e.reachFirst(e.f.plainNames(e.remote, own), true) == nil {
		return nil
	}
	found, untrusted, err := e.f.told(ctx, e.remote)
	if errors.Is(err, errSilent) {
		// Whoever has no room may be a stranger, or not.
		return e.reachFirst(e.f.plainNames(e.remote, slices.Compact([]int{own, 0})...), false)
	}
	if err != nil {
		return err
	}
	var names []string
	for _, s := range found {
		names = append(names, s.name)
	}
	err = e.reachFirst(names, true)
	if err == errNobody && untrusted != nil {
		return fmt.Errorf("the listener at %v: %w", e.remote, untrusted)
	}
	return err
}

// reachFirst connects with the first listener of those names that is trusted:
// one that is not may be in a trusted one's place. One that has no room either
// ends that with errBusy, or does so if none of those behind it connects.
func (e *endpoint) reachFirst(names []string, wait bool) error {
	result := error(errNobody)
	for _, name := range names {
		err := e.reachAt(name)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.ECONNREFUSED):
		case errors.Is(err, syscall.EAGAIN):
			result = errBusy
			if wait {
				return result
			}
		case result != errBusy:
			result = fmt.Errorf("the listener at %v: %w", e.remote, err)
		}
	}
	return result
}

// reachAt connects the socket to whoever has a name, if that is a trusted user.
func (e *endpoint) reachAt(name string) error {
	if e.sock.rights {
		// Whoever it connects to can send descriptors at once.
		if err := e.f.vet(name); err != nil {
			return err
		}
	}
	if err := e.sock.connect(name); err != nil {
		return err
	}
	err := e.f.trust(e.sock, true)
	if err != nil {
		// A socket connects once.
		err = errors.Join(err, e.renewSocket())
	}
	return err
}

// vet returns an error unless a trusted user listens at a name.
func (f *shm) vet(name string) error {
	uid, err := listenerUser(name)
	if err != nil {
		return err
	}
	return f.judge(uid, true)
}

// renewSocket puts a new socket in the place of one that is of no more use.
func (e *endpoint) renewSocket() error {
	s, err := e.f.newSocket(e.sock.closer)
	if err != nil {
		return err
	}
	e.mu.Lock()
	old := e.sock
	e.sock = s
	e.mu.Unlock()
	if old.woken.Load() {
		s.wake()
	}
	err = old.close()
	if e.named {
		_ = s.bindDialer(e.local) // the port's name is free now
	}
	return err
}

// wantDescriptor lets the listener, now that it is trusted, send the memory.
func (e *endpoint) wantDescriptor() error {
	if e.sock.rights {
		return nil // it can anyway
	}
	e.sock.rights = true
	return e.sock.passRights(true)
}

// wantNoMore ends that, if the kernel allows it, and checks that the listener
// has used it no more than it should. An honest one has nothing to say until it
// hears from this side, unless it gives up.
func (e *endpoint) wantNoMore(ctx context.Context) error {
	guarded := !e.f.lenient && e.sock.passRights(false) == nil
	descriptors, err := e.sock.next()
	switch {
	case err == unix.EAGAIN:
		e.sock.rights = !guarded
		return nil
	case err == nil && descriptors:
		return errDescriptors
	}
	_, fd, err := e.receive(ctx)
	if fd >= 0 {
		e.sock.closer.close(descriptor(fd))
	}
	if err == nil {
		err = errAnother
	}
	return err
}

// Confirm implements [fabric.Endpoint].
func (e *endpoint) Confirm() error {
	if e.passive || e.step != answered {
		return fmt.Errorf("confirm: %w", syscall.EINVAL)
	}
	if err := e.sock.send((&frame{kind: rtu}).encode(), -1); err != nil {
		return fmt.Errorf("confirm: %w: %w", fabric.ErrDisconnected, err)
	}
	e.step = established
	return nil
}

// readRequest is the passive side's beginning. at is where it listens.
func (e *endpoint) readRequest(ctx context.Context, at netip.AddrPort) error {
	f, _, err := e.receive(ctx)
	if err != nil {
		return err
	}
	if f.kind != req {
		return errAnother
	}
	claims := []netip.AddrPort{f.source, f.target}
	if at.Addr().IsMulticast() {
		claims = claims[:1] // a group is no host's
	}
	for _, a := range claims {
		if err := checkClaim(a); err != nil {
			return err
		}
	}
	e.peerShape = f.shape
	e.local, e.remote = f.target, f.source
	if !hears(at, e.local) {
		return fmt.Errorf("nobody listens at %v here", e.local)
	}
	e.private = fabric.Padded(f.private, fabric.MaxConnectData)
	e.step = requested
	return nil
}

// Private implements [fabric.Endpoint].
func (e *endpoint) Private() []byte { return e.private }

// Accept implements [fabric.Endpoint].
func (e *endpoint) Accept(ctx context.Context, private []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !e.passive || e.step != requested || e.limits.RecvQueue == 0 || len(private) > fabric.MaxAcceptData {
		return fmt.Errorf("accept: %w", syscall.EINVAL)
	}
	if err := e.share(); err != nil {
		e.sayNo(&frame{reason: reasonUnsupported, text: err.Error()})
		return err
	}
	e.step = answered
	err := e.sock.send((&frame{kind: rep, shape: e.shape, private: private}).encode(), e.fd)
	if err != nil && !hungUp(err) {
		return err
	}
	f, _, err := e.receive(ctx)
	if err != nil {
		return err
	}
	if f.kind != rtu {
		return errAnother
	}
	if err := e.settle(); err != nil {
		return err
	}
	e.step = established
	return nil
}

// Reject implements [fabric.Endpoint].
func (e *endpoint) Reject(private []byte) error {
	asked := e.passive && e.step == requested || !e.passive && e.step == answered
	if !asked || len(private) > fabric.MaxRejectData {
		return fmt.Errorf("reject: %w", syscall.EINVAL)
	}
	e.step = over
	return e.sock.send((&frame{kind: rej, reason: fabric.RejectConsumer, private: private}).encode(), -1)
}

// errListenerClosed is what dialers hear whose request was never accepted.
var errListenerClosed = wire.Reject{Reason: "the listener is closed"}

// refuse says why the fabric refuses, and closes the endpoint.
func (e *endpoint) refuse(reason int, text string) {
	e.sayNo(&frame{reason: reason, text: text})
	_ = e.Close()
}

// turnAway refuses for the listener, and closes the endpoint.
func (e *endpoint) turnAway(why wire.Reject) {
	e.sayNo(&frame{reason: fabric.RejectConsumer, private: why.Append(nil)})
	_ = e.Close()
}

// sayNo ends the handshake with a REJ.
func (e *endpoint) sayNo(f *frame) {
	e.step = over
	f.kind = rej
	_ = e.sock.send(f.encode(), -1)
}

// share makes the memory of both ends.
func (e *endpoint) share() error {
	l, err := newLayout(e.shape, e.peerShape)
	if err == nil {
		e.layout = l
		e.mem, e.fd, err = createMemory(l.queues(), l.size())
	}
	if err == nil {
		err = e.divide()
	}
	return err
}

// settle looks after the memory once the peer has it mapped. Its descriptor is
// then of no more use.
func (e *endpoint) settle() error {
	err := checkSettled(e.fd, e.layout.queues())
	unix.Close(e.fd)
	e.fd = -1
	return err
}

// adopt maps the memory that has to come with the listener's answer.
func (e *endpoint) adopt(f frame, fd int) error {
	if fd < 0 {
		return errAnother
	}
	l, err := newLayout(f.shape, e.shape)
	if f.kind != rep {
		err = errAnother
	}
	if err == nil {
		e.layout = l
		e.mem, err = adoptMemory(fd, l.queues(), l.size())
	}
	if err != nil {
		e.sock.closer.close(descriptor(fd)) // which may be anything
		return err
	}
	unix.Close(fd)
	return e.divide()
}

// divide finds both ends' segments in their memory, makes what this end has
// registered, and says in its segment what has been done before it was there.
func (e *endpoint) divide() error {
	e.peer, e.own = e.layout.views(e.mem)
	if e.passive {
		e.own, e.peer = e.peer, e.own
	}
	if e.registered > 0 {
		if err := populateFully(e.own.region[:e.registered]); err != nil {
			return err
		}
	}
	e.own.posted.Store(e.recvPosted)
	if e.armed.Load() {
		return e.Arm()
	}
	return nil
}

// receive returns the peer's next frame, and the descriptor that a listener's
// may come with, or -1. A refusal, or its going away instead
// of an answer, is an error.
func (e *endpoint) receive(ctx context.Context) (frame, int, error) {
	var b [maxFrame]byte
	n, fd, err := e.sock.receive(ctx, b[:], !e.passive)
	if errors.Is(err, syscall.ECONNRESET) {
		// The peer closed its end with something of ours unread. What it sent
		// before comes behind this news.
		n, fd, err = e.sock.receive(ctx, b[:], !e.passive)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		e.step = over
		return frame{}, -1, &fabric.RejectError{Reason: fabric.RejectConsumer}
	}
	if err != nil {
		return frame{}, -1, err
	}
	f, err := decodeFrame(b[:n])
	if err == nil && f.kind == rej {
		e.step = over
		err = &fabric.RejectError{Reason: f.reason, Private: fabric.Padded(f.private, fabric.MaxRejectData)}
		if f.text != "" {
			err = fmt.Errorf("%s: %w", f.text, err)
		}
	}
	if err != nil && fd >= 0 {
		e.sock.closer.close(descriptor(fd))
	}
	return f, fd, err
}

func hungUp(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}
