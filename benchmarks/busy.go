package main

import (
	"os"
	"runtime"
	"time"

	sys "golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/benchmarks/process"
	"github.com/ringnet/ringnet/internal/perf/workload"
)

// strangers are other processes of this program, which compute all the time beside what is
// measured.
type strangers []*process.Child

// strangerArgument makes a process of this program a stranger.
const strangerArgument = "stranger"

// be starts or ends strangers until there are n.
func (s *strangers) be(n int) error {
	for len(*s) > n {
		(*s)[len(*s)-1].Kill()
		*s = (*s)[:len(*s)-1]
	}
	for len(*s) < n {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		started, err := process.Start(self, strangerArgument)
		if err != nil {
			return err
		}
		*s = append(*s, started)
	}
	return nil
}

// beStranger computes.
func beStranger() {
	runtime.GOMAXPROCS(1)
	process.Ready("nowhere")
	for now := time.Now(); ; {
		now = workload.Compute(now, time.Second)
	}
}

// processorTime is what strangers have had so far, in seconds.
func (s *strangers) processorTime() (sum float64) {
	for _, c := range *s {
		var t sys.Timespec
		// The clock of a process (linux/posix-timers.h: MAKE_PROCESS_CPUCLOCK, CPUCLOCK_SCHED).
		if sys.ClockGettime(int32(^c.Process.Pid<<3|2), &t) == nil {
			sum += time.Duration(t.Nano()).Seconds()
		}
	}
	return sum
}
