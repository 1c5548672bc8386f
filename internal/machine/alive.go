package machine

import (
	"errors"
	"syscall"
	"time"
)

// keepAlive finds out whether the peer's device is there.
type keepAlive struct {
	activity uint64    // completions
	seen     uint64    // activity, at the last keepAliveTick
	due      bool      // the peer's device is to be asked for a sign of life
	probed   time.Time // when it was last asked
}

var errNoCompletion = errors.New("the device has not completed a keepalive probe")

// probe asks the peer's device for a sign of life.
func (l *Link) probe() {
	if l.stage == Up {
		l.alive.due, l.Watched = true, true
	}
}

// keepAliveTick probes the peer's device if nothing has completed since the last
// tick. It comes twice in Config.KeepAlive, so that no silence is longer than
// that: a peer active just after a tick is not probed by the next.
func (l *Link) keepAliveTick() {
	if l.stage >= Ended {
		return
	}
	a := &l.alive
	l.alarms.set(keepAliveAlarm, l.now().Add(l.cfg.KeepAlive/2))
	if l.stage != Up { // it may be again
		return
	}
	switch {
	case !l.send.control.probes.free(&l.send.slots) && l.since(a.probed) > l.cfg.ProbeTimeout:
		l.Fail(&LostError{syscall.ETIMEDOUT, errNoCompletion})
	case a.activity == a.seen:
		l.probe()
	}
	a.seen = a.activity
}
