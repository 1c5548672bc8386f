// The completion queue, its event, and the changes of a connection.

package sim

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// entry is a completion, with the position in the send or receive queue that it frees.
type entry struct {
	fabric.Completion
	pos uint64
}

// completionQueue is an endpoint's.
type completionQueue struct {
	ring       []entry
	head, tail uint64
	// ready is tail-head. Poll looks at it before it takes the lock, so that a
	// poll that finds nothing gives the race detector no edge to what has been
	// placed meanwhile.
	ready atomic.Int64
	late  [2]lateQueue // sends, receives
	rng   *rand.Rand   // of Link.Jitter

	armed   bool
	event   bool // an armed completion queue had a completion
	woken   bool
	waiting bool
	changes []error
	bell    chan struct{} // wakes Wait when event, woken or changes is set
}

// lateQueue has the completions that are held back, in order.
type lateQueue struct {
	held    bool
	entries []entry
	due     []time.Time // of entries
	last    time.Time
}

// Index of completionQueue.late.
const (
	sendSide = iota
	recvSide
)

// complete adds x to the completion queue, at once or later.
func (e *Endpoint) complete(x entry) {
	if e.unflushed && x.Status == fabric.Flushed {
		return
	}
	side := sendSide
	if x.Recv {
		side = recvSide
	}
	q := &e.late[side]
	jitter := e.n.link.Jitter
	if !q.held && jitter == 0 && len(q.entries) == 0 {
		e.publish(x)
		return
	}
	due := time.Now()
	if jitter > 0 {
		due = due.Add(time.Duration(e.rng.Int64N(int64(jitter) + 1)))
	}
	if due.Before(q.last) {
		due = q.last
	}
	q.last = due
	q.entries = append(q.entries, x)
	q.due = append(q.due, due)
	e.c.agenda.after(time.Until(due), func() { e.release(side) })
}

// release publishes the late completions that are due.
func (e *Endpoint) release(side int) {
	q := &e.late[side]
	if q.held || e.closed {
		return
	}
	now, n := time.Now(), 0
	for n < len(q.entries) && !q.due[n].After(now) {
		n++
	}
	due := q.entries[:n]
	q.entries, q.due = q.entries[n:], q.due[n:]
	for _, x := range due {
		e.publish(x)
	}
}

// publish makes a completion visible to Poll. There is room: a request that was posted keeps
// its place in its queue until its completion is polled.
func (e *Endpoint) publish(x entry) {
	e.ring[e.tail%uint64(len(e.ring))] = x
	e.tail++
	e.ready.Add(1)
	if e.armed {
		e.armed = false
		e.event = true
		e.ringBell()
	}
}

// Poll implements [fabric.Endpoint].
func (e *Endpoint) Poll(c []fabric.Completion) (int, error) {
	e.turn++
	if e.ready.Load() == 0 {
		return 0, nil
	}
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("Poll")
	n := 0
	for n < len(c) && e.head != e.tail {
		x := &e.ring[e.head%uint64(len(e.ring))]
		c[n] = x.Completion
		if x.Recv {
			e.recvPolled = x.pos + 1
		} else {
			e.sendFreed = x.pos + 1
		}
		e.head++
		n++
	}
	e.ready.Add(int64(-n))
	return n, nil
}

// Arm implements [fabric.Endpoint].
func (e *Endpoint) Arm() error {
	e.turn++
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("Arm")
	e.armed = true
	return nil
}

// Wait implements [fabric.Endpoint].
func (e *Endpoint) Wait() error {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("Wait")
	if e.waiting {
		panic("sim: two Waits at once")
	}
	e.waiting = true
	for len(e.changes) == 0 && !e.event && !e.woken {
		e.c.mu.Unlock()
		<-e.bell
		e.c.mu.Lock()
	}
	e.waiting = false
	if len(e.changes) > 0 {
		err := e.changes[0]
		e.changes = e.changes[1:]
		return err
	}
	e.event, e.woken = false, false
	return nil
}

// Wake implements [fabric.Endpoint].
func (e *Endpoint) Wake() {
	e.c.mu.Lock()
	e.woken = true
	e.ringBell()
	e.c.mu.Unlock()
}

// change adds an error for Wait to return.
func (e *Endpoint) change(err error) {
	e.changes = append(e.changes, err)
	e.ringBell()
}

// ringBell wakes Wait.
func (e *Endpoint) ringBell() {
	select {
	case e.bell <- struct{}{}:
	default:
	}
}
