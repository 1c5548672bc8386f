// Time: when a message leaves, when it arrives, and what happens then.

package sim

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// conn is what the two endpoints of a connection share.
type conn struct {
	n     *Network
	cut   atomic.Bool   // this connection's own cable
	cards [2]netip.Addr // of the two ends

	// mu guards the state of both endpoints. The fabric places data in
	// registered memory under it, and Poll takes it to hand out completions:
	// that is the only edge by which the race detector excuses a read.
	mu     sync.Mutex
	events []event // a heap, the earliest first
	seq    uint64
	timer  *time.Timer
	due    time.Time // when timer fires
}

type event struct {
	at  time.Time
	seq uint64 // tells apart what happens at one instant
	do  func()
}

func (a event) before(b event) bool {
	if !a.at.Equal(b.at) {
		return a.at.Before(b.at)
	}
	return a.seq < b.seq
}

// broken reports whether nothing gets through.
func (c *conn) broken() bool {
	if c.cut.Load() || c.n.cut.Load() {
		return true
	}
	cut := c.n.cards.Load()
	return cut != nil && ((*cut)[c.cards[0]] || (*cut)[c.cards[1]])
}

// after runs do with c.mu held, d from now: at once, if that is now. The
// caller holds c.mu.
func (c *conn) after(d time.Duration, do func()) {
	if d <= 0 {
		do()
		return
	}
	c.at(time.Now().Add(d), do)
}

// at runs do with c.mu held at the time t, after all that was to be run before
// or at t. The caller holds c.mu.
func (c *conn) at(t time.Time, do func()) {
	c.seq++
	c.events = append(c.events, event{t, c.seq, do})
	for i := len(c.events) - 1; i > 0; {
		up := (i - 1) / 2
		if !c.events[i].before(c.events[up]) {
			break
		}
		c.events[i], c.events[up] = c.events[up], c.events[i]
		i = up
	}
	c.schedule()
}

// schedule sets the timer for the earliest event.
func (c *conn) schedule() {
	if len(c.events) == 0 {
		return
	}
	first := c.events[0].at
	switch {
	case c.timer == nil:
		c.timer = time.AfterFunc(time.Until(first), c.fire)
	case c.due.IsZero() || first.Before(c.due):
		c.timer.Reset(time.Until(first))
	default:
		return
	}
	c.due = first
}

// fire runs the events that are due.
func (c *conn) fire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due = time.Now() // what these bring that is due at once is run here, too
	for len(c.events) > 0 && !c.events[0].at.After(time.Now()) {
		c.pop().do()
	}
	c.due = time.Time{}
	c.schedule()
}

func (c *conn) pop() event {
	first, last := c.events[0], len(c.events)-1
	c.events[0] = c.events[last]
	c.events[last] = event{}
	c.events = c.events[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if c.events[child].before(c.events[least]) {
				least = child
			}
		}
		if least == i {
			return first
		}
		c.events[i], c.events[least] = c.events[least], c.events[i]
		i = least
	}
}

// stop drops all events: both ends are closed.
func (c *conn) stop() {
	c.events = nil
	if c.timer != nil {
		c.timer.Stop()
	}
}

// lane is one direction of the link.
type lane struct {
	free time.Time // when the last byte handed over so far has left
	rest int64     // fraction of a nanosecond that free lacks, in 1/Bandwidth
}

// leave puts size bytes on the lane behind whatever is there and returns when
// the last of them has left.
func (n *Network) leave(s side, size int) time.Time {
	now := time.Now()
	if n.link.Bandwidth == 0 {
		return now
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &n.lanes[s]
	if l.free.Before(now) {
		l.free, l.rest = now, 0
	}
	t := int64(size)*int64(time.Second) + l.rest
	l.free = l.free.Add(time.Duration(t / n.link.Bandwidth))
	l.rest = t % n.link.Bandwidth
	return l.free
}
