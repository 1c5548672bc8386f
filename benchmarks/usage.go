package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"

	"github.com/ringnet/ringnet/internal/perf"
)

// Footprint is what a process holds. Memory that two processes share counts half for each
// (the kernel's proportional set size).
type Footprint struct {
	Memory      int // bytes resident
	Anonymous   int // of these, in memory without a file: the Go heap and stacks, and not shared memory
	Go          int // heap and stacks in use
	Pinned      int // bytes of registered memory
	Descriptors int
	Goroutines  int
	Threads     int
	Objects     Objects
}

// Objects are the objects of RDMA devices, of all processes of the host: the kernel does
// not say reliably of which process each is.
type Objects struct {
	QueuePairs       int `json:"qp,omitempty"`
	CompletionQueues int `json:"cq,omitempty"`
}

func (o Objects) minus(before Objects) Objects {
	return Objects{o.QueuePairs - before.QueuePairs, o.CompletionQueues - before.CompletionQueues}
}

// objects runs rdma, a program of iproute2. It returns zeros if there is no such program,
// or no device.
func objects() (sum Objects) {
	out, err := exec.Command("rdma", "-j", "resource", "show").Output()
	if err != nil {
		return sum
	}
	var devices []Objects
	_ = json.Unmarshal(out, &devices)
	for _, d := range devices {
		sum.QueuePairs += d.QueuePairs
		sum.CompletionQueues += d.CompletionQueues
	}
	return sum
}

func footprint() Footprint {
	runtime.GC()         // pools lose what they hold with the second collection,
	debug.FreeOSMemory() // which this begins with
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f := Footprint{
		Go:         int(m.HeapAlloc + m.StackInuse),
		Goroutines: runtime.NumGoroutine(),
		Memory:     perf.ProcNumber("/proc/self/smaps_rollup", "Pss:") << 10,
		Anonymous:  perf.ProcNumber("/proc/self/smaps_rollup", "Pss_Anon:") << 10,
		Pinned:     perf.ProcNumber("/proc/self/status", "VmPin:") << 10,
		Threads:    perf.ProcNumber("/proc/self/status", "Threads:"),
		Objects:    objects(),
	}
	if d, err := os.ReadDir("/proc/self/fd"); err == nil {
		f.Descriptors = len(d) - 1 // without the folder itself
	}
	return f
}

// minus is how much more f is than before, for each of n.
func (f Footprint) minus(before Footprint, n int) perConnection {
	each := func(now, then int) float64 { return float64(now-then) / float64(n) }
	return perConnection{
		Memory:      each(f.Memory, before.Memory),
		Anonymous:   each(f.Anonymous, before.Anonymous),
		Go:          each(f.Go, before.Go),
		Pinned:      each(f.Pinned, before.Pinned),
		Descriptors: each(f.Descriptors, before.Descriptors),
		Goroutines:  each(f.Goroutines, before.Goroutines),
		Threads:     each(f.Threads, before.Threads),
	}
}
