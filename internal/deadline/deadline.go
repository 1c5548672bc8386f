// Package deadline implements the deadlines of net.Conn and net.Listener.
package deadline

import (
	"sync"
	"sync/atomic"
	"time"
)

// Deadline is a point in time that may be moved while calls wait for it.
// Any goroutines may call its methods at the same time.
type Deadline struct {
	expired atomic.Bool // passed is closed; changes under mu

	mu     sync.Mutex
	passed chan struct{} // closed when the deadline passes
	waker  Waker         // woken then; nil: none
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
	if d.expired.Load() {
		d.passed = make(chan struct{})
		d.expired.Store(false)
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.pass()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		// A timer that was stopped too late is no longer d's.
		if d.timer == timer {
			d.timer = nil
			d.pass()
		}
	})
	d.timer = timer
}

// Done returns a channel that is closed when the deadline passes. A caller that goes on after
// that calls Done again, for the deadline may have been moved.
func (d *Deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed
}

// Waker is what a caller sleeps on that does not receive from Done.
type Waker interface{ Wake() }

// Notify has w woken when the deadline passes, in place of what was to be woken; nil is nothing. If it
// has passed, Notify returns true, and wakes nothing.
func (d *Deadline) Notify(w Waker) (expired bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.expired.Load() {
		d.waker = w
	}
	return d.expired.Load()
}

// Expired reports whether the deadline has passed.
func (d *Deadline) Expired() bool { return d.expired.Load() }

// pass marks the deadline as passed. Called with mu held.
func (d *Deadline) pass() {
	d.expired.Store(true)
	close(d.passed)
	if d.waker != nil {
		d.waker.Wake()
		d.waker = nil
	}
}
