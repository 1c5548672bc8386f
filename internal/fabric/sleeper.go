//go:build unix

package fabric

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// Sleeper waits for a descriptor in Go's netpoller. Wake ends the wait with a read deadline in
// the past, which needs no second descriptor. Only one of Sleep and SleepUntil may be called at
// a time; the other methods may be called at any time.
type Sleeper struct {
	file *os.File // owns the descriptor
	raw  syscall.RawConn

	// woken is set while the read deadline is in the past, or about to be, because of Wake.
	woken atomic.Bool
}

// NewSleeper makes a Sleeper of a descriptor that does not block; the name is for errors. If
// the descriptor cannot be polled, it also returns an error: such a Sleeper can only be closed.
func NewSleeper(fd int, name string) (*Sleeper, error) {
	s := &Sleeper{file: os.NewFile(uintptr(fd), name)}
	err := s.file.SetReadDeadline(time.Time{}) // fails if it cannot be polled
	if err == nil {
		s.raw, err = s.file.SyscallConn()
	}
	return s, err
}

// Close closes the descriptor. Sleep and SleepUntil fail then.
func (s *Sleeper) Close() error { return s.file.Close() }

// Wake makes the present Sleep return, or the next.
func (s *Sleeper) Wake() {
	if !s.woken.Swap(true) {
		s.interrupt()
	}
}

// Woken reports whether Wake has been called since a Sleep returned because of it.
func (s *Sleeper) Woken() bool { return s.woken.Load() }

// Sleep calls ready at once, and whenever the descriptor may have become readable. It returns
// nil when ready returns true, or after Wake.
func (s *Sleeper) Sleep(ready func(fd uintptr) bool) error {
	err := s.raw.Read(ready)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// In this order: a Wake in between finds woken set and does nothing, rightly, since
		// this Sleep returns.
		s.resume()
		s.woken.Store(false)
		return nil
	}
	return err
}

// SleepUntil is like Sleep, but what ends it is the end of ctx, with its error. Wake is for
// the Sleep that comes next.
func (s *Sleeper) SleepUntil(ctx context.Context, ready func(fd uintptr) bool) error {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		s.interrupt()
		close(interrupted)
	})
	defer func() {
		if !stop() {
			<-interrupted
		}
		s.resume()
		// In this order: a Wake in between interrupts by itself.
		if s.woken.Load() {
			s.interrupt()
		}
	}()
	for {
		err := s.raw.Read(ready)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		// In this order: the end of ctx interrupts the next Read if this does not see it.
		s.resume()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// interrupt makes the present read return, and every one until resume.
func (s *Sleeper) interrupt() { s.file.SetReadDeadline(time.Unix(1, 0)) }

// resume lets reads wait again.
func (s *Sleeper) resume() { s.file.SetReadDeadline(time.Time{}) }
