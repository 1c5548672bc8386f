package ringnet

// Errors as package net has them: those of dials and listeners are a *net.OpError, and the
// end of a context has package net's words.

import (
	"context"
	"errors"
	"net"
	"os"

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

// contextError gives the end of a context package net's words. Errors that say more than
// that the context has ended are returned as they are.
func contextError(err error) error {
	switch err.(type) {
	case *autoError, *requiredError, *waitError, *net.DNSError:
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return canceledError{}
	case errors.Is(err, context.DeadlineExceeded):
		return timeoutError{}
	}
	return err
}

// timeoutError is the error of a dial that took too long. errors.Is finds in it both what
// package net's dials return then, and what its connections return.
type timeoutError struct{}

func (timeoutError) Error() string   { return "i/o timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }
func (timeoutError) Is(err error) bool {
	return err == context.DeadlineExceeded || err == os.ErrDeadlineExceeded
}

// canceledError is the error of a dial whose context was cancelled.
type canceledError struct{}

func (canceledError) Error() string     { return "operation was canceled" }
func (canceledError) Is(err error) bool { return err == context.Canceled }
