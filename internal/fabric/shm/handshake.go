//go:build linux

package shm

// The handshake, which connects two queue pairs.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// handshake is an endpoint's state of it.
type handshake struct {
	step      step
	passive   bool   // made by a listener
	private   []byte // of the request
	peerShape shape  // the dialer's, from its request, if this end is passive
}

// step is how far an endpoint's handshake has come. These methods move it on, with
// the frame that they send or receive:
//
//	                dialer      listener
//	→ requested     Connect     readRequest    req
//	→ answered      Connect     Accept         rep
//	→ established   Confirm     Accept         rtu
//	→ over          either, before that        rej, or the end of the socket
type step int

const (
	idle step = iota
	requested
	answered
	established
	over
)

// reasonUnsupported is REJ reason 5, "unsupported request": the fabric refuses,
// not its user.
const reasonUnsupported = 5

// errHandshake is for a frame that the handshake does not allow at this step.
var errHandshake = fmt.Errorf("the peer broke the handshake: %w", syscall.EPROTO)

// Connect implements [fabric.Endpoint].
func (e *endpoint) Connect(ctx context.Context, private []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if e.passive || e.step != idle || e.limits.RecvQueue == 0 || len(private) > fabric.MaxConnectData {
		return nil, fmt.Errorf("connect: %w", syscall.EINVAL)
	}
	for _, c := range []closer{e.sock.closer, e.calls} {
		if err := c.admit(); err != nil {
			return nil, fmt.Errorf("the listener at %v: %w", e.remote, err)
		}
	}
	if err := e.reach(ctx); err != nil {
		return nil, err
	}
	if err := e.allowDescriptor(); err != nil {
		return nil, err
	}
	e.step = requested
	// A listener that has refused already has closed its end; its REJ can still be
	// received.
	err := e.sock.send((&frame{kind: req, shape: e.shape, source: e.local, target: e.remote, private: private}).encode(), -1)
	if err != nil && !hungUp(err) {
		return nil, err
	}
	f, fd, err := e.receive(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.within(ctx, func() error { return e.adopt(f, fd) }); err != nil {
		return nil, err
	}
	if err := e.forbidDescriptors(ctx); err != nil {
		return nil, err
	}
	e.step = answered
	return fabric.Padded(f.private, fabric.MaxAcceptData), nil
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

// readRequest receives and checks a dialer's request. at is the listener's address.
func (e *endpoint) readRequest(ctx context.Context, at netip.AddrPort) error {
	f, _, err := e.receive(ctx)
	if err != nil {
		return err
	}
	if f.kind != req {
		return errHandshake
	}
	claims := []netip.AddrPort{f.source, f.target}
	if at.Addr().IsMulticast() {
		claims = claims[:1] // the target is the group, which is no host's address
	}
	for _, a := range claims {
		if err := checkClaim(a); err != nil {
			return err
		}
	}
	e.peerShape = f.shape
	e.local, e.remote = f.target, f.source
	if !covers(at, e.local) {
		return fmt.Errorf("no listener has the address %v", e.local)
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
	if err := e.createShared(); err != nil {
		e.refuse(err)
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
		return errHandshake
	}
	if err := e.within(ctx, e.settle); err != nil {
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
	return e.sendReject(frame{reason: fabric.RejectConsumer, private: private})
}

// errListenerClosed goes to the dialers that a closed listener has not accepted. They ask again, and find
// no listener then, or another.
var errListenerClosed = wire.Reject{Busy: true, Reason: "the listener is closed"}

// refuse ends the handshake with a REJ of the fabric's. If err is for want of descriptors or
// memory, the dialer is to ask again.
func (e *endpoint) refuse(err error) {
	f := frame{reason: reasonUnsupported, text: err.Error()}
	switch {
	case errors.Is(err, fabric.ErrOtherUser):
		f = frame{reason: fabric.RejectStranger}
	case exhausted(err):
		why := wire.Reject{Busy: true, Reason: err.Error()}
		f.reason, f.private = fabric.RejectConsumer, why.Append(nil)
	}
	_ = e.sendReject(f)
}

// rejectAndClose sends a REJ with the listener's reason, and closes the endpoint.
func (e *endpoint) rejectAndClose(why wire.Reject) {
	_ = e.sendReject(frame{reason: fabric.RejectConsumer, private: why.Append(nil)})
	_ = e.Close()
}

// sendReject ends the handshake with a REJ.
func (e *endpoint) sendReject(f frame) error {
	e.step = over
	f.kind = rej
	return e.sock.send(f.encode(), -1)
}

// createShared makes the memory of both ends.
func (e *endpoint) createShared() error {
	l, err := newLayout(e.shape, e.peerShape)
	if err != nil {
		return err
	}
	parts := l.parts(e.passive, e.registered)
	mapped, fd, err := createMemory(l.size(), parts)
	if err != nil {
		return err
	}
	e.fd = fd
	return e.takeParts(l, parts, mapped)
}

// settle checks the memory once the peer has mapped it.
func (e *endpoint) settle() error {
	if err := checkSettled(e.fd, len(e.queues)); err != nil {
		return err
	}
	return e.explore()
}

// adopt maps the memory that has to come with the listener's answer.
func (e *endpoint) adopt(f frame, fd int) error {
	if fd < 0 {
		return errHandshake
	}
	l, err := newLayout(f.shape, e.shape)
	if f.kind != rep {
		err = errHandshake
	}
	parts := l.parts(e.passive, e.registered)
	var mapped [3][]byte
	if err == nil {
		mapped, err = adoptMemory(fd, l.size(), parts)
	}
	if err != nil {
		e.sock.closer.close(descriptor(fd)) // which may be of any file
		return err
	}
	e.fd = fd
	if err := e.takeParts(l, parts, mapped); err != nil {
		return err
	}
	return e.explore()
}

// takeParts takes over the parts of the memory, finds both ends' segments in them, and populates
// what this end has registered. It also stores in this end's segment the receives that have been
// posted before it existed, and that the endpoint is armed.
func (e *endpoint) takeParts(l layout, parts [3]part, mapped [3][]byte) error {
	e.queues = mapped[0]
	e.ownRegion.at, e.pieces = parts[1].at, []ownPiece{{bytes: mapped[1]}}
	e.peerRegion.at = parts[2].at
	e.open(mapped[2])
	e.peer, e.own = l.views(e.queues)
	if e.passive {
		e.own, e.peer = e.peer, e.own
	}
	for _, m := range e.ownRegion.memory {
		if err := e.mapOwn(m); err != nil {
			return err
		}
	}
	e.own.posted.Store(e.recvPosted)
	if e.armed.Load() {
		return e.Arm()
	}
	return nil
}

// receive returns the peer's next frame, and the descriptor that came with a
// listener's, or -1. If the peer refuses or goes away instead, the error wraps a
// [fabric.RejectError].
func (e *endpoint) receive(ctx context.Context) (frame, int, error) {
	var b [maxFrame]byte
	n, fd, err := e.sock.receive(ctx, b[:], !e.passive)
	if errors.Is(err, syscall.ECONNRESET) {
		// The peer closed its end with a frame of ours unread. The kernel reports
		// that first, and then has what the peer sent before.
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
		err = e.rejected(&f)
	}
	if err != nil && fd >= 0 {
		e.sock.closer.close(descriptor(fd))
	}
	return f, fd, err
}

// rejected ends the handshake for the peer's REJ, and returns what that says.
func (e *endpoint) rejected(f *frame) error {
	e.step = over
	if f.reason == fabric.RejectStranger {
		return &fabric.OtherUserError{Peer: e.user, Own: ownUser(), Refused: true}
	}
	err := &fabric.RejectError{Reason: f.reason, Private: fabric.Padded(f.private, fabric.MaxRejectData)}
	if f.text != "" {
		return fmt.Errorf("%s: %w", f.text, err)
	}
	return err
}

func hungUp(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}
