package fabric

import (
	"context"
	"math/rand/v2"
	"time"
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
