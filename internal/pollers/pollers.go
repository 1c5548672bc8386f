// Package pollers limits how many goroutines of this process poll a device at a time: to
// one fewer than GOMAXPROCS. If all processors polled, the scheduler would not ask the
// network poller for the events that other goroutines wait for.
package pollers

import (
	"runtime"
	"sync/atomic"
)

var polling atomic.Int32

// Begin reports whether the caller may poll. If so, the caller calls [End] when it no
// longer polls.
func Begin() bool {
	if polling.Add(1) < int32(runtime.GOMAXPROCS(0)) {
		return true
	}
	End()
	return false
}

// End is called once for each Begin that has returned true.
func End() { polling.Add(-1) }
