// Events at times to come, virtual or real.

package sim

import (
	"slices"
	"sync"
	"time"
)

// agenda are events to come. The owner sets L before it adds the first.
type agenda struct {
	L sync.Locker // guards what follows; held while an event runs

	events []event // the earliest first
	timer  *time.Timer
	due    time.Time // when timer fires
}

type event struct {
	at time.Time
	do func()
}

// after runs do with L held: at once if d is 0, else after d. The caller holds L.
func (a *agenda) after(d time.Duration, do func()) {
	if d <= 0 {
		do()
		return
	}
	a.add(time.Now().Add(d), do)
}

// add runs do with L held at the time t, after events that were added for t before. The
// caller holds L.
func (a *agenda) add(t time.Time, do func()) {
	i, _ := slices.BinarySearchFunc(a.events, t, func(e event, t time.Time) int {
		if e.at.After(t) {
			return 1
		}
		return -1
	})
	a.events = slices.Insert(a.events, i, event{t, do})
	a.schedule()
}

// schedule sets the timer for the earliest event. The caller holds L.
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
	a.L.Lock()
	defer a.L.Unlock()
	a.due = time.Now() // so that events which these add do not set the timer: the loop runs those that are due
	for len(a.events) > 0 && !a.events[0].at.After(time.Now()) {
		do := a.events[0].do
		a.events = slices.Delete(a.events, 0, 1)
		do()
	}
	a.due = time.Time{}
	a.schedule()
}

// stop drops all events. The caller holds L.
func (a *agenda) stop() {
	a.events = nil
	if a.timer != nil {
		a.timer.Stop()
	}
}
