package main

import (
	"io"
	"os"
	"os/exec"
	"time"

	sys "golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/perf"
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
	for {
		spin(1 << 20)
	}
}

// spin does n steps of arithmetic, each of which needs the last one's result.
//
//go:noinline
func spin(n int) (x uint32) {
	for range n {
		x = x*1664525 + 1013904223
	}
	return x
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

// What the goroutine of openCompute does: an operation takes some 100 µs, if nobody
// interrupts it.
const (
	computeConns = 16
	computeSteps = 1 << 16
)

// openCompute measures a goroutine of the client that computes while connections are busy.
func openCompute(cl perf.Client) (*perf.Session, error) {
	cl.Conns = computeConns
	conns, _, err := cl.DialAll()
	if err != nil {
		return nil, err
	}
	return &perf.Session{
		Timed: true, Close: keepBusy(conns, workBytes),
		Run: func(_, _ int, times []time.Duration) error {
			return timeEach(times, func() error {
				spin(computeSteps)
				return nil
			})
		},
	}, nil
}
