package link

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// A peer answers OPEN at once, whatever its application does. One that does not is stopped, or
// hangs, and its kernel or its device goes on acknowledging what it is sent. Its listener's address
// may have another process by now, so dials pass over its link: see Pool.

// errSilent reports a link on which the peer has answered no OPEN for too long.
var errSilent = errors.New("the peer does not answer")

// silence is since when a peer has answered none of the OPENs that it is to answer; nil: there are
// none.
type silence struct {
	since atomic.Pointer[time.Time]
	was   time.Time // the same; guarded by Link.mu
}

// set notes since when; zero: there are none.
func (u *silence) set(since time.Time) {
	if u.was = since; since.IsZero() {
		u.since.Store(nil)
	} else {
		u.since.Store(&since)
	}
}

// lasted is how long the silence has lasted.
func (u *silence) lasted() time.Duration {
	since := u.since.Load()
	if since == nil {
		return 0
	}
	return time.Since(*since)
}

// silentFor reports whether the peer has answered no OPEN for so long; never if that is 0. It takes
// no lock.
func (l *Link) silentFor(long time.Duration) bool {
	return long > 0 && l.unheard.lasted() >= long
}

// openWithin is Open, but fails with errSilent once the peer has answered no OPEN for so long,
// this one or others; never if that is 0. If this one is answered later, it is reset then.
func (l *Link) openWithin(ctx context.Context, long time.Duration) (*Stream, error) {
	if long == 0 {
		return l.Open(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var timer *time.Timer
	timer = time.AfterFunc(unset, func() {
		if left := long - l.unheard.lasted(); left > 0 {
			timer.Reset(left)
		} else {
			cancel(errSilent)
		}
	})
	defer timer.Stop()
	timer.Reset(long)
	s, err := l.Open(ctx)
	if err != nil && context.Cause(ctx) == errSilent {
		err = errSilent
	}
	return s, err
}
