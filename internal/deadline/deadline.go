// Package deadline is what net.Conn and net.Listener mean by a deadline.
package deadline

import (
	"sync"
	"time"
)

// Deadline is a point in time that may be moved while somebody waits for it.
// All methods may be called at once.
type Deadline struct {
	mu     sync.Mutex
	passed chan struct{} // closed when the deadline passes
	timer  *time.Timer   // nil without a deadline ahead
}

// New returns a deadline that never passes.
func New() *Deadline { return &Deadline{passed: make(chan struct{})} }

// Set moves the deadline to t; the zero time means never.
func (d *Deadline) Set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.isPassed() {
		d.passed = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		close(d.passed)
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		// A timer that was stopped too late is no longer d's.
		if d.timer == timer {
			d.timer = nil
			close(d.passed)
		}
	})
	d.timer = timer
}

// Done is closed when the deadline passes. It is to be asked for anew after
// that, for the deadline may have been moved.
func (d *Deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed
}

// Expired says whether the deadline has passed.
func (d *Deadline) Expired() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.isPassed()
}

func (d *Deadline) isPassed() bool {
	select {
	case <-d.passed:
		return true
	default:
		return false
	}
}
