package workload

import (
	"runtime"
	"runtime/metrics"
)

// Usage is what a process has used so far.
type Usage struct {
	CPU      float64 `json:"cpu"` // seconds, of user and system; 0 if unknown
	Mallocs  uint64  `json:"mallocs"`
	LockWait float64 `json:"lock_wait"` // seconds that goroutines have waited for locks, approximately
}

// OwnUsage is the usage of this process.
func OwnUsage() Usage {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	wait := []metrics.Sample{{Name: "/sync/mutex/wait/total:seconds"}}
	metrics.Read(wait)
	return Usage{cpuTime().Seconds(), m.Mallocs, wait[0].Value.Float64()}
}

func (u Usage) minus(before Usage) Usage {
	return Usage{u.CPU - before.CPU, u.Mallocs - before.Mallocs, u.LockWait - before.LockWait}
}
