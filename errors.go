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

// RefusedError is the error of a listener that refused the connection. Its field Reason is the
// listener's; Busy means that a later dial may succeed. errors.Is(err, syscall.ECONNREFUSED) holds.
// It has the methods Error, Unwrap, Timeout (false) and Temporary (Busy).
type RefusedError = fabric.RefusedError

// ProtocolError is the error of a peer that broke the protocol; its field Reason says how. All
// connections of its link end. errors.Is(err, syscall.EPROTO) holds. It has the methods Error and
// Unwrap.
type ProtocolError = link.ProtocolError

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
