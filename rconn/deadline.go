package rconn

import (
	"sync"
	"time"
)

// deadline is a point in time that may be moved while somebody waits for it.
type deadline struct {
	mu     sync.Mutex
	passed chan struct{} // closed when the deadline passes
	timer  *time.Timer   // nil without a deadline ahead
}

func newDeadline() *deadline { return &deadline{passed: make(chan struct{})} }

// set moves the deadline to t; the zero time means never.
func (d *deadline) set(t time.Time) {
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

// done is closed when the deadline passes. It is to be asked for anew after
// that, for the deadline may have been moved.
func (d *deadline) done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed
}

func (d *deadline) expired() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.isPassed()
}

func (d *deadline) isPassed() bool {
	select {
	case <-d.passed:
		return true
	default:
		return false
	}
}
