package rconn

import (
	"os"
	"runtime"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
)

// rearmAfter bounds how long a completion queue may stay unarmed after a call
// that polled has returned to its application.
const rearmAfter = time.Millisecond

// A call that polls looks at the clock, and lets other goroutines run, once in
// so many polls: each costs more than a poll, and runtime.Gosched wakes another
// thread to look for work.
const (
	pollsPerClock = 16
	pollsPerYield = 64
)

// waiter is a reason to wait. ready is called with mu held.
type waiter struct {
	ready    func(c *Conn) bool
	signal   <-chan struct{}
	deadline *deadline.Deadline
}

// wait returns when w.ready holds, having made it so by its own polling if that
// was possible, or os.ErrDeadlineExceeded. It polls for a while, and then parks
// with the completion queue armed.
func (c *Conn) wait(w waiter) error {
	if c.limits.Spin > 0 && c.cfg.BusyPoll >= 0 && c.busyPoll(w) {
		return nil
	}
	for {
		c.mu.Lock()
		c.progress()
		if !w.ready(c) {
			c.arm()
		}
		ready := w.ready(c)
		if ready {
			c.rearmLater() // the dispatcher may have left the queue to this call's polling
		}
		c.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-w.signal:
		case <-w.deadline.Done():
			return os.ErrDeadlineExceeded
		}
	}
}

// busyPoll polls until w is ready, which it returns, or polling has gone on for
// long enough.
func (c *Conn) busyPoll(w waiter) bool {
	var until time.Time
	polls := 0
	if c.cfg.BusyPoll > 0 {
		until = time.Now().Add(c.cfg.BusyPoll)
	} else {
		polls = c.pollBudget()
	}
	c.spinners.Add(1)
	ready := false
	for i := 0; !ready; i++ {
		if c.cfg.BusyPoll > 0 {
			if i%pollsPerClock == pollsPerClock-1 && time.Now().After(until) {
				break
			}
		} else if i == polls {
			break
		}
		if c.mu.TryLock() {
			c.progress()
			ready = w.ready(c)
			c.mu.Unlock()
		}
		if w.deadline.Expired() {
			break
		}
		if !ready && i%pollsPerYield == pollsPerYield-1 {
			runtime.Gosched()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spinners.Add(-1)
	c.pollResult(ready)
	if ready {
		c.rearmLater()
	}
	return ready
}

// arm has the dispatcher woken by the next completion. Called with mu held.
func (c *Conn) arm() {
	if c.armed || c.ended {
		return
	}
	if err := c.ep.Arm(); err != nil {
		c.lose(lost(err))
		return
	}
	c.armed = true
	c.progress()
}

// rearmLater makes sure that the completion queue does not stay unwatched, at
// less cost than arming it: between the calls of a ping-pong nobody is woken.
// Called with mu held.
func (c *Conn) rearmLater() {
	if !c.armed && !c.rearming {
		c.rearming = true
		c.rearmSeen = c.rounds
		c.rearm.Reset(rearmAfter)
	}
}

// rearmTick arms unless somebody has polled since the last tick.
func (c *Conn) rearmTick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rearming = false
	if c.ended {
		return
	}
	if c.rounds != c.rearmSeen {
		c.rearmLater()
		return
	}
	c.arm()
}

// pollBudget is how often the next wait polls before it parks: as often as the
// fabric thinks worth it where polling finds something, and rarely where it
// does not, with now and then a full try to see whether that has changed.
func (c *Conn) pollBudget() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits++
	if c.waits%16 == 0 {
		return c.limits.Spin
	}
	return c.budget
}

// pollResult adapts the budget to how polling went. Called with mu held.
func (c *Conn) pollResult(ready bool) {
	if ready {
		c.budget = c.limits.Spin
		return
	}
	c.budget = max(c.budget/2, c.limits.Spin/64, 1)
}
