package ringnet

// Errors as package net has them: those of dials and listeners are a *net.OpError.

import (
	"errors"
	"net"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
)

// RefusedError is the error of a listener that refused the connection: errors.As finds it.
// errors.Is(err, syscall.ECONNREFUSED) holds.
type RefusedError struct {
	Reason string // the listener's
	Busy   bool   // a later dial may succeed
}

// Error returns the text of the error, with Reason.
func (e *RefusedError) Error() string { return (*fabric.RefusedError)(e).Error() }

// Unwrap returns syscall.ECONNREFUSED.
func (e *RefusedError) Unwrap() error { return (*fabric.RefusedError)(e).Unwrap() }

// Timeout returns false.
func (e *RefusedError) Timeout() bool { return (*fabric.RefusedError)(e).Timeout() }

// Temporary returns Busy.
func (e *RefusedError) Temporary() bool { return (*fabric.RefusedError)(e).Temporary() }

// ProtocolError is the error of a peer that broke the protocol: errors.As finds it. All connections
// of its link end. errors.Is(err, syscall.EPROTO) holds.
type ProtocolError struct {
	Reason string // how the peer broke it
}

// Error returns the text of the error, with Reason.
func (e *ProtocolError) Error() string { return (*link.ProtocolError)(e).Error() }

// Unwrap returns syscall.EPROTO.
func (e *ProtocolError) Unwrap() error { return (*link.ProtocolError)(e).Unwrap() }

// opError wraps what went wrong in an operation as package net would. Nil stays nil.
// Each of source and addr may be nil.
func opError(op, network string, source, addr net.Addr, err error) error {
	if err == nil {
		return nil
	}
	return &net.OpError{Op: op, Net: network, Source: source, Addr: addr, Err: err}
}

// withReasons adds the reasons to an error of auto that has them.
func withReasons(err error) error {
	var required *auto.RequiredError
	if errors.As(err, &required) {
		return &requiredError{required, reasonsOf(required.PassedOver)}
	}
	return err
}

// requiredError says why no network but TCP can be had, where TCP alone is not enough.
type requiredError struct {
	*auto.RequiredError
	reasons []Reason
}

func (e *requiredError) Unwrap() []error {
	errs := make([]error, len(e.reasons))
	for i, r := range e.reasons {
		errs[i] = r
	}
	return errs
}
