// Package pollers bounds how many calls of this process poll at a time. They leave a
// processor to others: one that polls and yields keeps the scheduler from asking the
// network poller for what others wait for.
package pollers

import (
	"runtime"
	"sync/atomic"
)

var polling atomic.Int32

// Begin says whether the caller may poll, until it calls [End].
func Begin() bool {
	if polling.Add(1) < int32(runtime.GOMAXPROCS(0)) {
		return true
	}
	End()
	return false
}

// End ends what Begin has allowed.
func End() { polling.Add(-1) }
