package transport

// How the end of a context, and of a dial that has waited, is reported.

import (
	"context"
	"errors"
	"net"
	"os"
)

// ContextError gives the end of a context package net's words. An error that has them already, or
// is one of name resolution, which says more, is returned as it is.
func ContextError(err error) error {
	switch {
	case errors.As(err, new(canceledError)), errors.As(err, new(timeoutError)), errors.As(err, new(*net.DNSError)):
		return err
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

// WaitError is the error of a dial whose time ended while it waited for its turn, or for room
// at the listener.
type WaitError struct {
	Ended error // how the context ended, in package net's words
	Cause error // why the dial had to wait
}

// waited returns the error of a dial that has waited until its context ended.
func waited(ctx context.Context, cause error) *WaitError {
	return &WaitError{ContextError(ctx.Err()), cause}
}

func (e *WaitError) Error() string   { return e.Ended.Error() + ": " + e.Cause.Error() }
func (e *WaitError) Unwrap() []error { return []error{e.Ended, e.Cause} }
func (e *WaitError) Timeout() bool   { return errors.Is(e.Ended, context.DeadlineExceeded) }
func (e *WaitError) Temporary() bool { return e.Timeout() } // as package net has it
