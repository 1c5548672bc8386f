// Events at times to come, virtual or real.

package sim

import (
	"sync"
	"time"
)

// Agenda are events to come. The owner sets L before it adds the first.
type Agenda struct {
	L sync.Locker // guards what follows; held while an event runs

	events []event // a heap, the earliest first
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

// After runs do with L held: at once if d is 0, else after d. The caller holds L.
func (a *Agenda) After(d time.Duration, do func()) {
	if d <= 0 {
		do()
		return
	}
	a.At(time.Now().Add(d), do)
}

// At runs do with L held at the time t, after events that were added for t before. The
// caller holds L.
func (a *Agenda) At(t time.Time, do func()) {
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

// schedule sets the timer for the earliest event. The caller holds L.
func (a *Agenda) schedule() {
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
func (a *Agenda) fire() {
	a.L.Lock()
	defer a.L.Unlock()
	a.due = time.Now() // so that events which these add do not set the timer: the loop runs those that are due
	for len(a.events) > 0 && !a.events[0].at.After(time.Now()) {
		a.pop().do()
	}
	a.due = time.Time{}
	a.schedule()
}

// pop removes the earliest event. The caller holds L.
func (a *Agenda) pop() event {
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

// Stop drops all events. The caller holds L.
func (a *Agenda) Stop() {
	a.events = nil
	if a.timer != nil {
		a.timer.Stop()
	}
}
