//go:build linux

package fabric

import (
	"context"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// newSleeper returns a Sleeper on one end of a pipe, and the other end.
func newSleeper(t *testing.T) (s *Sleeper, w int) {
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	s, err := NewSleeper(p[0], "pipe")
	require.NoError(t, err)
	t.Cleanup(func() {
		s.Close()
		unix.Close(p[1])
	})
	return s, p[1]
}

// readable reads a byte. It returns false if there is none.
func readable(fd uintptr) bool {
	var b [1]byte
	n, _ := unix.Read(int(fd), b[:])
	return n == 1
}

func put(t *testing.T, w int) {
	_, err := unix.Write(w, []byte{1})
	require.NoError(t, err)
}

// begun runs f in a goroutine. What it returns arrives once f has.
func begun(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func asleep(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		require.FailNow(t, "it returned", "%v", err)
	case <-time.After(20 * time.Millisecond):
	}
}

func TestSleeperSleep(t *testing.T) {
	s, w := newSleeper(t)
	sleep := func() error { return s.Sleep(readable) }
	done := begun(sleep)
	asleep(t, done)
	put(t, w)
	require.NoError(t, <-done)

	done = begun(sleep)
	asleep(t, done)
	s.Wake()
	require.NoError(t, <-done, "the present Sleep")
	require.False(t, s.Woken())

	s.Wake()
	s.Wake()
	require.True(t, s.Woken())
	require.NoError(t, sleep(), "the next Sleep")
	done = begun(sleep)
	asleep(t, done)
	require.NoError(t, s.Close())
	require.Error(t, <-done)
	s.Wake()
	require.Error(t, sleep())
}

func TestSleeperSleepUntil(t *testing.T) {
	s, w := newSleeper(t)
	ctx, cancel := context.WithCancel(t.Context())
	until := func() error { return s.SleepUntil(ctx, readable) }
	done := begun(until)
	asleep(t, done)
	put(t, w)
	require.NoError(t, <-done)

	done = begun(until)
	asleep(t, done)
	s.Wake()
	asleep(t, done)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, s.Sleep(readable), "which was woken meanwhile")

	done = begun(func() error { return s.Sleep(readable) })
	asleep(t, done) // neither ctx nor Wake ends it
	put(t, w)
	require.NoError(t, <-done)
}

func TestSleeperNeedsADescriptorThatCanBePolled(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer f.Close()
	fd, err := syscall.Dup(int(f.Fd()))
	require.NoError(t, err)
	s, err := NewSleeper(fd, "file")
	require.ErrorIs(t, err, os.ErrNoDeadline)
	require.NoError(t, s.Close())
}

// A Wake that is lost leaves a Sleep that does not return: all that come later do nothing.
func TestSleeperLosesNoWake(t *testing.T) {
	s, _ := newSleeper(t)
	var over atomic.Bool
	defer over.Store(true)
	go func() {
		for !over.Load() {
			s.Wake()
			runtime.Gosched()
		}
	}()
	for range 50_000 {
		require.NoError(t, s.Sleep(readable))
	}
	for range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		require.ErrorIs(t, s.SleepUntil(ctx, readable), context.Canceled)
		require.NoError(t, s.Sleep(readable))
	}
}

func TestSleeperIsNotInterruptedByAContextOfTheLastSleepUntil(t *testing.T) {
	s, w := newSleeper(t)
	for range 2000 {
		ctx, cancel := context.WithCancel(t.Context())
		put(t, w)
		go cancel()
		if err := s.SleepUntil(ctx, readable); err != nil {
			require.ErrorIs(t, err, context.Canceled)
			require.NoError(t, s.Sleep(readable), "the byte is there")
		}
		runtime.Gosched()
		require.NoError(t, s.raw.Read(func(uintptr) bool { return true }))
	}
}
