package main

import (
	"io"
	"os"
	"os/exec"
	"time"

	sys "golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/perf/workload"
)

// strangers are other processes of this program, which compute all the time beside what is
// measured. They end with this process.
type strangers []*exec.Cmd

// strangerArgument makes a process of this program a stranger.
const strangerArgument = "stranger"

// be starts or ends strangers until there are n.
func (s *strangers) be(n int) error {
	for len(*s) > n {
		last := (*s)[len(*s)-1]
		*s = (*s)[:len(*s)-1]
		_ = last.Process.Kill()
		_ = last.Wait() // it was killed
	}
	for len(*s) < n {
		started, err := startStranger()
		if err != nil {
			return err
		}
		*s = append(*s, started)
	}
	return nil
}

// startStranger returns when the stranger computes.
func startStranger() (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := exec.Command(self, strangerArgument)
	c.Env, c.Stderr = append(os.Environ(), "GOMAXPROCS=1"), os.Stderr
	if _, err := c.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	_, err = out.Read(make([]byte, 1))
	return c, err
}

// beStranger computes until the process that reads of this one's output and keeps its input
// open has ended.
func beStranger() error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if _, err := os.Stdout.Write([]byte{0}); err != nil {
		return err
	}
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
