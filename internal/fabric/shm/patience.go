//go:build linux

package shm

import (
	"errors"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A peer whose doorbells take slowDoorbell of this process's processor, slowInARow in a row, loses
// the connection. Others take some microseconds; where an emulated machine, or one whose host has other work, counts
// what it waits for as its own time, some of many take longer.
const (
	slowDoorbell = 500 * time.Microsecond
	slowInARow   = 8
)

var errSlow = errors.New("each doorbell takes long, since the peer has too many pollers")

// patience measures calls of one kind. A call that takes long by the clock may only have lost its
// processor to others; so after one the next are measured by their thread's time.
type patience struct {
	doubting bool
	slow     int // in a row
}

// begin is called before a call; end gets what it returns.
func (p *patience) begin() (began time.Duration) {
	if p.doubting {
		runtime.LockOSThread()
		return threadTime()
	}
	return clock()
}

// end is called after the call. It returns errSlow if the peer is not to be borne with.
func (p *patience) end(began time.Duration) error {
	if !p.doubting {
		p.doubting = clock()-began > slowDoorbell
		return nil
	}
	took := threadTime() - began
	runtime.UnlockOSThread()
	if took < slowDoorbell {
		*p = patience{}
		return nil
	}
	if p.slow++; p.slow == slowInARow {
		return errSlow
	}
	return nil
}

var epoch = time.Now()

func clock() time.Duration { return time.Since(epoch) }

// threadTime is how long the calling thread has had a processor.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}
