package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Usage is what a process has used so far, or uses now.
type Usage struct {
	CPU      float64 // seconds, of user and system
	Mallocs  uint64
	LockWait float64 // seconds that goroutines have waited for locks, approximately
}

func usage() Usage {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return Usage{}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	wait := []metrics.Sample{{Name: "/sync/mutex/wait/total:seconds"}}
	metrics.Read(wait)
	return Usage{cpuSeconds(&r), m.Mallocs, wait[0].Value.Float64()}
}

func cpuSeconds(r *syscall.Rusage) float64 {
	return (time.Duration(r.Utime.Nano()) + time.Duration(r.Stime.Nano())).Seconds()
}

// Footprint is what a process holds. Of memory shared with another process each
// has half (the kernel's proportional set size).
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

// Objects are what RDMA devices have, for all processes of the host: the kernel
// does not tell reliably for which.
type Objects struct {
	QueuePairs       int `json:"qp,omitempty"`
	CompletionQueues int `json:"cq,omitempty"`
}

func (o Objects) minus(before Objects) Objects {
	return Objects{o.QueuePairs - before.QueuePairs, o.CompletionQueues - before.CompletionQueues}
}

// objects asks rdma, of iproute2, and is nothing where there is neither that
// nor a device.
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
	runtime.GC()         // what pools hold goes with the second collection
	debug.FreeOSMemory() // which this begins with
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f := Footprint{
		Go:         int(m.HeapAlloc + m.StackInuse),
		Goroutines: runtime.NumGoroutine(),
		Memory:     procNumber("/proc/self/smaps_rollup", "Pss:") << 10,
		Anonymous:  procNumber("/proc/self/smaps_rollup", "Pss_Anon:") << 10,
		Pinned:     procNumber("/proc/self/status", "VmPin:") << 10,
		Threads:    procNumber("/proc/self/status", "Threads:"),
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

// procNumber is the number behind a word in a file of /proc, or 0.
func procNumber(file, word string) int {
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 1 && fields[0] == word {
			n, _ := strconv.Atoi(fields[1])
			return n
		}
	}
	return 0
}
