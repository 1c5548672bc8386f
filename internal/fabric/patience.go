package fabric

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/ringnet/ringnet/internal/wire"
)

// Who has no room is asked again after pauses that grow from shortestPause to longestPause,
// each half as long again or shorter by as much at random, so that those who were refused
// together do not come back together.
const (
	shortestPause = 5 * time.Millisecond
	longestPause  = time.Second
)

// Patiently does what try does, again and again while the other side rejects it for want of
// room. If it had none when ctx ends, the error is what it said last.
func Patiently(ctx context.Context, try func() error) error {
	var full error
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		err := try()
		switch {
		case IsFull(err):
			full = err
		case full != nil && err != nil && errors.Is(err, ctx.Err()):
			return full
		default:
			return err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return full
		}
	}
}

// IsFull says whether an error is a rejection for want of room, which does not last.
func IsFull(err error) bool {
	var reject *RejectError
	return errors.As(err, &reject) && wire.DecodeReject(reject.Private).Busy
}
