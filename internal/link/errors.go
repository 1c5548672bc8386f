package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/errtype"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// ProtocolError is the error of a peer that broke the protocol. All connections of its link
// end. errors.Is(err, syscall.EPROTO) holds.
type ProtocolError struct{ Reason string }

func (e *ProtocolError) Error() string { return "peer broke the ringnet protocol: " + e.Reason }

func (e *ProtocolError) Unwrap() error { return syscall.EPROTO }

// As has errors.As find e as the type that programs know.
func (e *ProtocolError) As(target any) bool { return errtype.As(e, target) }

// breach is the error of a search whose peer has broken the protocol. It is an errGone.
func breach(reason error) error {
	return fmt.Errorf("%w: %w", errGone, &ProtocolError{reason.Error()})
}

// notTaken is the error of a link that could not take what the peer has sent. The peer has broken
// the protocol, unless it is memory that this side lacks.
func notTaken(err error) error {
	if errors.Is(err, syscall.ENOMEM) {
		return err
	}
	return &ProtocolError{err.Error()}
}

// errGivenUp is why a link has ended that this side has given up: it carried nothing, or its dial has
// failed. It is not net.ErrClosed, which tells a program that it has closed a connection itself.
var errGivenUp = fmt.Errorf("%w (the link was given up)", syscall.ECONNRESET)

// lostError is why a link has ended: an errno that users of package net know, and the
// fabric's own error.
type lostError struct {
	errno  syscall.Errno
	reason error
}

func (e *lostError) Error() string   { return fmt.Sprintf("%v (%v)", e.errno, e.reason) }
func (e *lostError) Unwrap() []error { return []error{e.errno, e.reason} }
func (e *lostError) Timeout() bool   { return e.errno.Timeout() }
func (e *lostError) Temporary() bool { return e.errno.Temporary() }

// lost is the error that streams return for an error of the link's endpoint.
func lost(reason error) error {
	switch {
	case errors.Is(reason, fabric.ErrDisconnected):
		return syscall.ECONNRESET
	case errors.Is(reason, fabric.ErrDeviceRemoved), errors.Is(reason, fabric.ErrPortDown):
		return &lostError{syscall.ENETDOWN, reason}
	}
	return &lostError{syscall.ECONNRESET, reason}
}

// disconnected reports whether a link was lost because the peer, or its kernel, has
// disconnected it, or would have if there had been a path.
func disconnected(cause error) bool {
	return cause == syscall.ECONNRESET || errors.Is(cause, fabric.ErrDisconnected) || foundGone(cause)
}

// foundGone reports whether a search has ended because the peer does not have the link any
// more.
func foundGone(err error) bool { return errors.Is(err, errGone) && rejected(err) != nil }

// notResumed is the error that streams return when a link has sought another queue pair for
// so long and found none: cause, and then what the search has met. If the peer has
// disconnected and is gone, cause says enough; a breach of the protocol is a cause of its own.
// The search's error is added as text, without its errno: programs are not to take it for a
// deadline of theirs.
func notResumed(cause error, long time.Duration, vain error) error {
	if protocol := (*ProtocolError)(nil); errors.Is(vain, errGone) && errors.As(vain, &protocol) {
		return protocol
	}
	lost, ok := cause.(*lostError)
	if !ok {
		if errors.Is(vain, errGone) {
			return cause
		}
		lost = &lostError{syscall.ECONNRESET, fabric.ErrDisconnected}
	}
	if !foundGone(vain) {
		vain = errors.New(vain.Error())
	}
	return &lostError{lost.errno, fmt.Errorf("%w; no other queue pair in %v: %w", lost.reason, long.Round(time.Millisecond), vain)}
}

// stuckError reports a message that one queue pair after the other has lost. It is an errGone.
type stuckError struct{ bytes int }

func (e *stuckError) Error() string {
	return fmt.Sprintf("each has lost the same message, of %d bytes: the path may have a smaller MTU than its ends", e.bytes)
}

func (e *stuckError) Is(target error) bool { return target == errGone }

// errNoAnswer reports that no answer has come in the time that an attempt may take.
var errNoAnswer = errors.New("the peer did not answer")

// unreached is the error of an attempt at another queue pair over one of several routes.
func unreached(r route, err error, routes int) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = errNoAnswer
	}
	return fmt.Errorf("%v to %v: %w; pairs of cards tried: %d", r.local, r.remote, handshakeError(err), routes)
}

// failed is the error that streams return for a failed work request.
func failed(wc *fabric.Completion) error {
	reason := fmt.Errorf("%v, vendor code %#x", wc.Status, wc.Vendor)
	switch wc.Status {
	case fabric.RetryExceeded, fabric.ResponseTimeout:
		return &lostError{syscall.ETIMEDOUT, reason}
	case fabric.RemoteAccess:
		// The peer's ring is gone: kernels free a killed process's memory
		// regions before its queue pairs.
		return &lostError{syscall.ECONNRESET, reason}
	case fabric.RNRRetryExceeded:
		return &ProtocolError{reason.Error()}
	case fabric.RemoteInvalidRequest:
		// The peer's device has taken nothing of it. Soft-RoCE on a host with much else to
		// do has refused messages with which nothing was wrong.
		return &lostError{syscall.EPROTO, reason}
	case fabric.LocalLength:
		if wc.Recv { // a message larger than any that there is
			return &ProtocolError{reason.Error()}
		}
	}
	return &lostError{syscall.ECONNRESET, reason}
}

// handshakeError is the error that a dial or accept returns for a failed handshake.
func handshakeError(err error) error {
	if errors.Is(err, fabric.ErrDisconnected) || errors.Is(err, fabric.ErrDeviceRemoved) {
		return lost(err)
	}
	reject := rejected(err)
	if reject == nil {
		return err
	}
	switch said := wire.DecodeReject(reject.Private); {
	case reject.Reason == fabric.RejectNoListener:
		return os.NewSyscallError("connect", syscall.ECONNREFUSED)
	case reject.Reason == fabric.RejectStale:
		return &fabric.RefusedError{Reason: "its connection manager remembers an earlier connection of this queue pair", Busy: true}
	case said.Reason != "":
		return &fabric.RefusedError{Reason: said.Reason, Busy: said.Busy}
	case reject.Reason == fabric.RejectConsumer:
		return &fabric.RefusedError{Reason: "no reason given; it may not be a ringnet listener", Busy: said.Busy}
	}
	return &lostError{syscall.ECONNREFUSED, err}
}
