// Time: when messages leave and arrive.

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

	// Its mu guards the state of both endpoints. The fabric holds it while it writes to
	// registered memory, and Poll while it returns completions. For the race detector
	// nothing else makes a read of that memory safe.
	agenda
}

// broken reports whether nothing gets through.
func (c *conn) broken() bool { return c.cut.Load() || c.n.cables.severed(c.cards[0], c.cards[1]) }

// agenda are events to come.
type agenda struct {
	mu     sync.Mutex // guards what follows; held while an event runs
	events []event    // a heap, the earliest first
	seq    uint64
	timer  *time.Timer
	due    time.Time // when timer fires
}

type event struct {
	at  time.Time
	seq uint64 // the order of events at one instant
	do  func()
}

func (a event) before(b event) bool {
	if !a.at.Equal(b.at) {
		return a.at.Before(b.at)
	}
	return a.seq < b.seq
}

// after runs do with mu held: at once if d is 0, else after d. The caller holds mu.
func (a *agenda) after(d time.Duration, do func()) {
	if d <= 0 {
		do()
		return
	}
	a.at(time.Now().Add(d), do)
}

// at runs do with mu held at the time t, after events that were added for t before. The
// caller holds mu.
func (a *agenda) at(t time.Time, do func()) {
	a.seq++
	a.events = append(a.events, event{t, a.seq, do})
	for i := len(a.events) - 1; i > 0; {
		up := (i - 1) / 2
		if !a.events[i].before(a.events[up]) {
			break
		}
		a.events[i], a.events[up] = a.events[up], a.events[i]
		i = up
	}
	a.schedule()
}

// schedule sets the timer for the earliest event. The caller holds mu.
func (a *agenda) schedule() {
	if len(a.events) == 0 {
		return
	}
	first := a.events[0].at
	switch {
	case a.timer == nil:
		a.timer = time.AfterFunc(time.Until(first), a.fire)
	case a.due.IsZero() || first.Before(a.due):
		a.timer.Reset(time.Until(first))
	default:
		return
	}
	a.due = first
}

// fire runs the events that are due.
func (a *agenda) fire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.due = time.Now() // so that events which these add do not set the timer: the loop runs those that are due
	for len(a.events) > 0 && !a.events[0].at.After(time.Now()) {
		a.pop().do()
	}
	a.due = time.Time{}
	a.schedule()
}

// pop removes the earliest event. The caller holds mu.
func (a *agenda) pop() event {
	first, last := a.events[0], len(a.events)-1
	a.events[0] = a.events[last]
	a.events[last] = event{}
	a.events = a.events[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if a.events[child].before(a.events[least]) {
				least = child
			}
		}
		if least == i {
			return first
		}
		a.events[i], a.events[least] = a.events[least], a.events[i]
		i = least
	}
}

// stop drops all events. The caller holds mu.
func (a *agenda) stop() {
	a.events = nil
	if a.timer != nil {
		a.timer.Stop()
	}
}

// lane is one direction of the link.
type lane struct {
	free time.Time // when the last byte so far has left
	rest int64     // the fraction of a nanosecond by which free is too early, in 1/Bandwidth
}

// leave puts size bytes on the lane behind whatever is there and returns when
// the last of them has left. It takes n.mu.
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
