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

// patience returns a context that ends with ctx, or when Config.HandshakeTimeout has passed, or when the peer
// has answered no OPEN for so long; never for that if it is 0.
func (l *Link) patience(ctx context.Context, long time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithTimeout(ctx, l.cfg.HandshakeTimeout)
	if long == 0 {
		return ctx, stop
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var timer *time.Timer
	timer = time.AfterFunc(unset, func() {
		if left := long - l.unheard.lasted(); left > 0 {
			timer.Reset(left)
		} else {
			cancel(errSilent)
		}
	})
	timer.Reset(long)
	return ctx, func() {
		timer.Stop()
		stop()
	}
}

// impatience is why a context that patience has returned has ended.
func impatience(ctx context.Context) error {
	if context.Cause(ctx) == errSilent {
		return errSilent
	}
	return ctx.Err()
}
