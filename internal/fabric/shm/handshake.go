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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

// reasonUnsupported is REJ reason 5, "unsupported request": the fabric refuses,
// not who uses it.
const reasonUnsupported = 5

// errAnother ends a handshake whose peer says something out of turn.
var errAnother = fmt.Errorf("shm: the peer broke the handshake: %w", syscall.EPROTO)

// Connect implements [fabric.Endpoint].
func (e *endpoint) Connect(ctx context.Context, private []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if e.passive || e.step != idle || e.limits.RecvQueue == 0 || len(private) > fabric.MaxConnectData {
		return nil, fmt.Errorf("shm: connect: %w", syscall.EINVAL)
	}
	if err := e.share(0); err != nil {
		return nil, err
	}
	if err := e.reach(ctx); err != nil {
		return nil, err
	}
	if err := e.f.trust(e.sock, true); err != nil {
		return nil, fmt.Errorf("shm: the listener at %v: %w", e.remote, err)
	}
	e.step = requested
	// A listener that has refused already has closed its end, and what it said
	// is there to be received.
	err := e.offer(frame{kind: req, target: e.remote, private: private})
	if err != nil && !hungUp(err) {
		return nil, err
	}
	f, fd, err := e.receive(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.adopt(f, fd, rep); err != nil {
		return nil, err
	}
	if err := e.settle(); err != nil {
		return nil, err
	}
	e.step = answered
	return pad(f.private, fabric.MaxAcceptData), nil
}

// reach connects the socket to whoever listens at the address.
func (e *endpoint) reach(ctx context.Context) error {
	names := covering(e.remote)
	const shortest, longest = time.Millisecond, 100 * time.Millisecond
	pause := shortest
	for {
		err := syscall.ECONNREFUSED
		for _, a := range names {
			if err = connect(e.sock.fd, a); err != syscall.ECONNREFUSED {
				break
			}
		}
		switch err {
		case 0:
			return nil
		case syscall.ECONNREFUSED:
			return &fabric.RejectError{Reason: fabric.RejectNoListener}
		case syscall.EAGAIN:
			// The kernel's queue of the listener is full, and waiting for room
			// there would hold a thread. TCP too repeats its SYN after a while.
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			}
			pause = min(2*pause, longest)
		default:
			return os.NewSyscallError("connect", err)
		}
	}
}

func connect(fd int, to netip.AddrPort) syscall.Errno {
	for {
		switch err := unix.Connect(fd, &unix.SockaddrUnix{Name: nameOf(listenerName, to)}).(type) {
		case nil:
			return 0
		case syscall.Errno:
			if err != unix.EINTR {
				return err
			}
		default:
			return syscall.EINVAL
		}
	}
}

// Confirm implements [fabric.Endpoint].
func (e *endpoint) Confirm() error {
	if e.passive || e.step != answered {
		return fmt.Errorf("shm: confirm: %w", syscall.EINVAL)
	}
	if err := e.sock.send((&frame{kind: rtu}).encode(), -1); err != nil {
		return fmt.Errorf("shm: confirm: %w: %w", fabric.ErrDisconnected, err)
	}
	e.step = established
	return nil
}

// readRequest is the passive side's beginning. at is where it listens.
func (e *endpoint) readRequest(ctx context.Context, at netip.AddrPort) error {
	f, fd, err := e.receive(ctx)
	if err != nil {
		return err
	}
	if err := e.adopt(f, fd, req); err != nil {
		return err
	}
	if err := checkClaim(f.target); err != nil {
		return err
	}
	e.local = f.target
	if !hears(at, e.local) {
		return fmt.Errorf("shm: nobody listens at %v here", e.local)
	}
	e.private = pad(f.private, fabric.MaxConnectData)
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
		return fmt.Errorf("shm: accept: %w", syscall.EINVAL)
	}
	if err := e.share(0); err != nil {
		return err
	}
	e.step = answered
	if err := e.offer(frame{kind: rep, private: private}); err != nil && !hungUp(err) {
		return err
	}
	f, fd, err := e.receive(ctx)
	if err != nil {
		return err
	}
	if fd >= 0 {
		unix.Close(fd)
	}
	if fd >= 0 || f.kind != rtu {
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
		return fmt.Errorf("shm: reject: %w", syscall.EINVAL)
	}
	e.step = over
	return e.sock.send((&frame{kind: rej, reason: fabric.RejectConsumer, private: private}).encode(), -1)
}

// refuse says why, if there is anything to say, and closes the endpoint.
func (e *endpoint) refuse(reason int, text string) {
	e.step = over
	_ = e.sock.send((&frame{kind: rej, reason: reason, text: text}).encode(), -1)
	_ = e.Close()
}

// share makes this end's segment, unless there is one already.
func (e *endpoint) share(region int) (err error) {
	if e.own != nil {
		return nil
	}
	s := e.shape
	s.region = region
	e.own, e.fd, err = createSegment(s)
	if err == nil {
		e.own.posted.Store(e.recvPosted)
	}
	return err
}

// offer sends a frame with this end's segment.
func (e *endpoint) offer(f frame) error {
	f.shape = e.own.shape
	return e.sock.send(f.encode(), e.fd)
}

// settle looks after this end's segment once the peer has it mapped. Its
// descriptor is then of no more use.
func (e *endpoint) settle() error {
	err := e.own.settle(e.fd)
	unix.Close(e.fd)
	e.fd = -1
	if err != nil {
		return fmt.Errorf("shm: %w", err)
	}
	return nil
}

// receive returns the peer's next frame. A refusal, or its going away instead
// of an answer, is an error.
func (e *endpoint) receive(ctx context.Context) (frame, int, error) {
	var b [maxFrame]byte
	n, fd, err := e.sock.receive(ctx, b[:])
	if errors.Is(err, syscall.ECONNRESET) {
		// The peer closed its end with something of ours unread. What it sent
		// before comes behind this news.
		n, fd, err = e.sock.receive(ctx, b[:])
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
		err = &fabric.RejectError{Reason: f.reason, Private: pad(f.private, fabric.MaxRejectData)}
		if f.text != "" {
			err = fmt.Errorf("shm: %s: %w", f.text, err)
		}
	}
	if err != nil && fd >= 0 {
		unix.Close(fd)
	}
	return f, fd, err
}

// adopt maps the peer's segment, which has to come with a frame of this kind.
func (e *endpoint) adopt(f frame, fd int, k kind) (err error) {
	if fd >= 0 {
		defer unix.Close(fd)
	}
	if f.kind != k || fd < 0 {
		return errAnother
	}
	if e.peer, err = adoptSegment(fd, f.shape); err != nil {
		return fmt.Errorf("shm: %w", err)
	}
	return nil
}

func hungUp(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// pad makes private data as long as verbs would.
func pad(b []byte, n int) []byte {
	p := make([]byte, n)
	copy(p, b)
	return p
}
