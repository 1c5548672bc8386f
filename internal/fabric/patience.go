package fabric

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/ringnet/ringnet/internal/wire"
)

// A process without room is asked again after pauses that double from shortestPause to
// LongestPause.
const (
	shortestPause = 5 * time.Millisecond
	LongestPause  = time.Second
)

// Pauses are those between one try and the next. The zero Pauses have not begun.
type Pauses struct{ last time.Duration }

// Wait waits for the next pause, and reports false if ctx ends first. A pause is longer or
// shorter by up to a half, at random, so that those that were refused together do not come
// back together.
func (p *Pauses) Wait(ctx context.Context) bool {
	p.last = min(max(2*p.last, shortestPause), LongestPause)
	select {
	case <-time.After(p.last/2 + rand.N(p.last)):
		return true
	case <-ctx.Done():
		return false
	}
}

// Patiently does what try does, again and again while the other side rejects it for want of
// room. If it had none when ctx ends, the error is what it said last.
func Patiently(ctx context.Context, try func() error) error {
	var full error
	var pauses Pauses
	for {
		err := try()
		switch {
		case IsFull(err):
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

// IsFull reports whether an error is a rejection for want of room, which does not last.
func IsFull(err error) bool {
	var reject *RejectError
	return errors.As(err, &reject) && wire.DecodeReject(reject.Private).Busy
}
