//go:build linux && cgo

package ud

import (
	"context"
	"errors"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// patiently does what try does, again and again while the other side rejects it for want of
// room. If it had none when ctx ends, the error is what it said last.
func patiently(ctx context.Context, try func() error) error {
	var full error
	var pauses fabric.Pauses
	for {
		err := try()
		switch {
		case isFull(err):
			full = err
		case full != nil && err != nil && errors.Is(err, ctx.Err()):
			return full
		default:
			return err
		}
		if !pauses.Wait(ctx) {
			return full
		}
	}
}

// isFull reports whether an error is a rejection for want of room, which does not last.
func isFull(err error) bool {
	var reject *fabric.RejectError
	return errors.As(err, &reject) && wire.DecodeReject(reject.Private).Busy
}
