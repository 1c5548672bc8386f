package rconn

import (
	"os"
	"runtime"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
)

// A completion queue may stay unarmed for rearmAfter after a call that polled
// has returned to its application. As long as calls keep coming, and none is
// parked meanwhile, looking for the end of that grows rarer, up to rearmLimit:
// each look wakes a thread, which takes a processor from those who poll.
const (
	rearmAfter = time.Millisecond
	rearmLimit = 8 * time.Millisecond
)

// A call that polls looks at the clock, and lets other goroutines run, once in
// so many polls: each costs more than a poll, and runtime.Gosched wakes another
// thread to look for work.
const (
	pollsPerClock = 16
	pollsPerYield = 64
)

// call is a call that may have to wait.
type call struct {
	ready  func(c *Conn) bool // there is nothing more to wait for; mu is held
	parked bool
	signal chan struct{} // has room for one; sent to when a parked call is ready
}

// Index of Conn.calls.
const (
	readCall = iota
	writeCall
	closeCall
)

func newCalls() (calls [3]call) {
	for i, ready := range []func(c *Conn) bool{readCall: readReady, writeCall: writeReady, closeCall: closeReady} {
		calls[i] = call{ready: ready, signal: make(chan struct{}, 1)}
	}
	return calls
}

// wake wakes the parked calls that have become ready. Called with mu held,
// after a change.
func (c *Conn) wake() {
	for i := range c.calls {
		if w := &c.calls[i]; w.parked && w.ready(c) {
			w.parked = false
			c.parked--
			w.signal <- struct{}{}
		}
	}
}

// polls says whether calls poll before they park.
func (c *Conn) polls() bool { return c.limits.Spin > 0 && c.cfg.BusyPoll >= 0 }

// wait returns when the call is ready, having made it so by its own polling if
// that was possible, or os.ErrDeadlineExceeded. It polls for a while, and then
// parks with the completion queue armed.
func (c *Conn) wait(which int, d *deadline.Deadline) error {
	w := &c.calls[which]
	if c.polls() && c.busyPoll(w, d) {
		return nil
	}
	for {
		c.mu.Lock()
		w.parked = true // from here on it is woken, and the queue watched for it
		c.parked++
		if !w.ready(c) && c.armed {
			c.progress()
		}
		if !w.ready(c) {
			c.arm()
		}
		if w.ready(c) {
			c.unpark(w)
			c.rearmLater() // the dispatcher may have left the queue to this call's polling
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		select {
		case <-w.signal:
		case <-d.Done():
			c.mu.Lock()
			defer c.mu.Unlock()
			c.unpark(w)
			return os.ErrDeadlineExceeded
		}
	}
}

// unpark takes back that a call is parked. Called with mu held.
func (c *Conn) unpark(w *call) {
	if !w.parked {
		<-w.signal
		return
	}
	w.parked = false
	c.parked--
}

// busyPoll polls until the call is ready, which it returns, or polling has gone
// on for long enough.
func (c *Conn) busyPoll(w *call, d *deadline.Deadline) bool {
	var until time.Time
	most := 0
	if c.cfg.BusyPoll > 0 {
		until = time.Now().Add(c.cfg.BusyPoll)
	} else {
		most = c.pollBudget()
	}
	c.spinners.Add(1)
	ready, polls := false, 0
	for ; !ready; polls++ {
		if c.cfg.BusyPoll > 0 {
			if polls%pollsPerClock == pollsPerClock-1 && time.Now().After(until) {
				break
			}
		} else if polls == most {
			break
		}
		if c.mu.TryLock() {
			if !c.posting {
				c.turn(true)
			}
			ready = w.ready(c)
			c.mu.Unlock()
		}
		if d.Expired() {
			break
		}
		if !ready && polls%pollsPerYield == pollsPerYield-1 {
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
	switch {
	case c.armed || c.ended:
	case c.posting:
		c.armWanted = true
	case c.request():
		c.turn(true) // for what has completed before
	}
}

// request asks for an event, unless one has been asked for. What has completed
// before may give none.
func (c *Conn) request() bool {
	if c.armed {
		return false
	}
	if err := c.ep.Arm(); err != nil {
		c.lose(lost(err))
		return false
	}
	c.armed = true
	return true
}

// watch sees to it that the completion queue does not stay unwatched after an
// event. A call that polls arms when it stops (see wait), and others that have
// polled and not parked most likely come back soon. Called with mu held.
func (c *Conn) watch() {
	switch {
	case c.spinners.Load() > 0:
	case !c.polls(), c.closed, c.sender.Pending() > 0, c.parked > 0:
		c.arm()
	default:
		c.rearmLater()
	}
}

// rearmLater makes sure that the completion queue does not stay unwatched, at
// less cost than arming it: between the calls of a ping-pong nobody is woken.
// Called with mu held.
func (c *Conn) rearmLater() {
	if !c.armed && !c.rearming {
		c.rearmIn(rearmAfter)
	}
}

func (c *Conn) rearmIn(d time.Duration) {
	c.rearming = true
	c.rearmTime = d
	c.rearmSeen = c.rounds
	c.rearm.Reset(d)
}

// rearmTick arms unless somebody has polled since the last tick.
func (c *Conn) rearmTick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rearming = false
	if c.ended {
		return
	}
	switch {
	case c.rounds == c.rearmSeen || c.armed:
		c.arm()
	case c.parked > 0:
		c.rearmIn(rearmAfter)
	default:
		c.rearmIn(min(max(2*c.rearmTime, rearmAfter), rearmLimit))
	}
}

// pollBudget is how often the next wait polls before it parks: as often as the
// fabric thinks worth it where polling finds something, and hardly at all where
// it does not, with now and then a full try to see whether that has changed.
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
