// Package pollers limits how many goroutines of this process poll a device at a time: to
// one fewer than GOMAXPROCS. If all processors polled, the scheduler would not ask the
// network poller for the events that other goroutines wait for.
package pollers

import (
	"runtime"
	"sync/atomic"
	"time"
)

var (
	polling atomic.Int32
	begun   atomic.Uint64
	timed   atomic.Int64 // time.Duration, of every timedEach-th
)

// timedEach is how many polls there are for each that is timed, for to read the clock twice takes as
// long as many of them.
const timedEach = 64

// Poll is what a goroutine has begun that polls.
type Poll struct{ began time.Time } // zero unless it is timed

// Begin reports whether the caller may poll. If so, the caller calls End of the Poll when it no
// longer polls.
func Begin() (p Poll, ok bool) {
	if polling.Add(1) >= int32(runtime.GOMAXPROCS(0)) {
		polling.Add(-1)
		return p, false
	}
	if begun.Add(1)%timedEach == 0 {
		p.began = time.Now()
	}
	return p, true
}

// End is called once for each Begin that has returned true.
func (p Poll) End() {
	polling.Add(-1)
	if !p.began.IsZero() {
		timed.Add(int64(time.Since(p.began)))
	}
}

// Time returns how long goroutines of this process have polled, about: what is timed stands for the
// rest. Others may have run meanwhile.
func Time() time.Duration { return timedEach * time.Duration(timed.Load()) }
