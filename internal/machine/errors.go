package machine

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/errtype"
	"github.com/ringnet/ringnet/internal/fabric"
)

// ProtocolError is the error of a peer that broke the protocol. All connections of its link
// end. errors.Is(err, syscall.EPROTO) holds.
type ProtocolError struct{ Reason string }

func (e *ProtocolError) Error() string { return "peer broke the ringnet protocol: " + e.Reason }

func (e *ProtocolError) Unwrap() error { return syscall.EPROTO }

// As has errors.As find e as the type that programs know.
func (e *ProtocolError) As(target any) bool { return errtype.As(e, target) }

// ErrGone reports that the peer does not have the link any more, or that the two cannot go
// on with it.
var ErrGone = errors.New("the peer has ended the link, or is gone")

// Breach is the error of a search whose peer has broken the protocol. It is an ErrGone.
func Breach(reason error) error {
	return fmt.Errorf("%w: %w", ErrGone, &ProtocolError{reason.Error()})
}

// NotTaken is the error of a link that could not take what the peer has sent. The peer has broken
// the protocol, unless it is memory that this side lacks.
func NotTaken(err error) error {
	if errors.Is(err, syscall.ENOMEM) {
		return err
	}
	return &ProtocolError{err.Error()}
}

// errGivenUp is why a link has ended that this side has given up: it carried nothing, or its dial has
// failed. It is not net.ErrClosed, which tells a program that it has closed a connection itself.
var errGivenUp = fmt.Errorf("%w (the link was given up)", syscall.ECONNRESET)

// LostError is why a link has ended: an errno that users of package net know, and the
// fabric's own error.
type LostError struct {
	Errno  syscall.Errno
	Reason error
}

func (e *LostError) Error() string   { return fmt.Sprintf("%v (%v)", e.Errno, e.Reason) }
func (e *LostError) Unwrap() []error { return []error{e.Errno, e.Reason} }
func (e *LostError) Timeout() bool   { return e.Errno.Timeout() }
func (e *LostError) Temporary() bool { return e.Errno.Temporary() }

// Lost is the error that streams return for an error of the link's endpoint.
func Lost(reason error) error {
	switch {
	case errors.Is(reason, fabric.ErrDisconnected):
		return syscall.ECONNRESET
	case errors.Is(reason, fabric.ErrDeviceRemoved), errors.Is(reason, fabric.ErrPortDown):
		return &LostError{syscall.ENETDOWN, reason}
	case errors.Is(reason, fabric.ErrPathLost):
		return &LostError{syscall.EHOSTUNREACH, reason}
	}
	return &LostError{syscall.ECONNRESET, reason}
}

// disconnected reports whether a link was lost because the peer, or its kernel, has
// disconnected it, or would have if there had been a path.
func disconnected(cause error) bool {
	return cause == syscall.ECONNRESET || errors.Is(cause, fabric.ErrDisconnected) || foundGone(cause)
}

// Rejected is what the host that a request has reached has rejected it with; nil if there is no
// such.
func Rejected(err error) *fabric.RejectError {
	var reject *fabric.RejectError
	errors.As(err, &reject)
	return reject
}

// foundGone reports whether a search has ended because the peer does not have the link any
// more.
func foundGone(err error) bool { return errors.Is(err, ErrGone) && Rejected(err) != nil }

// notResumed is the error that streams return when a link has sought another queue pair for
// so long and found none: cause, and then what the search has met. If the peer has
// disconnected and is gone, cause says enough; a breach of the protocol is a cause of its own.
// The search's error is added as text, without its errno: programs are not to take it for a
// deadline of theirs.
func notResumed(cause error, long time.Duration, vain error) error {
	if protocol := (*ProtocolError)(nil); errors.Is(vain, ErrGone) && errors.As(vain, &protocol) {
		return protocol
	}
	lost, ok := cause.(*LostError)
	if !ok {
		lost = &LostError{syscall.ECONNRESET, fabric.ErrDisconnected}
		if _, stuck := vain.(*stuckError); stuck { // the peer may have noticed first that the last queue pair was lost, too
			lost.Errno = syscall.ETIMEDOUT
		} else if errors.Is(vain, ErrGone) {
			return cause
		}
	}
	if !foundGone(vain) {
		vain = errors.New(vain.Error())
	}
	return &LostError{lost.Errno, fmt.Errorf("%w; no other queue pair in %v: %w", lost.Reason, long.Round(time.Millisecond), vain)}
}

// stuckError reports a message that one queue pair after the other has lost. It is an ErrGone.
type stuckError struct{ bytes int }

func (e *stuckError) Error() string {
	return fmt.Sprintf("each has lost the same message, of %d bytes: the path may have a smaller MTU than its ends", e.bytes)
}

func (e *stuckError) Is(target error) bool { return target == ErrGone }

// Failed is the error that streams return for a failed work request.
func Failed(wc *fabric.Completion) error {
	reason := fmt.Errorf("%v, vendor code %#x", wc.Status, wc.Vendor)
	switch wc.Status {
	case fabric.RetryExceeded, fabric.ResponseTimeout:
		return &LostError{syscall.ETIMEDOUT, reason}
	case fabric.RemoteAccess:
		// The peer's ring is gone: kernels free a killed process's memory
		// regions before its queue pairs.
		return &LostError{syscall.ECONNRESET, reason}
	case fabric.RNRRetryExceeded:
		return &ProtocolError{reason.Error()}
	case fabric.RemoteInvalidRequest:
		// The peer's device has taken nothing of it. Soft-RoCE on a host with much else to
		// do has refused messages with which nothing was wrong.
		return &LostError{syscall.EPROTO, reason}
	case fabric.LocalLength:
		if wc.Recv { // a message larger than any that there is
			return &ProtocolError{reason.Error()}
		}
	}
	return &LostError{syscall.ECONNRESET, reason}
}
