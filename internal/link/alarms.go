package link

import (
	"container/list"
	"time"
)

// alarms are the times at which a link is to look again, whatever happens meanwhile. Its one timer is set
// to the first of them (setTimer). Guarded by Link.mu.
type alarms struct {
	at      [alarmKinds]time.Time // zero: not set
	closing list.List             // of the streams with afterClose.due set, the first due first
	changed bool                  // one has been set since setTimer has looked
}

// alarm is what a link looks after.
type alarm uint8

const (
	idleAlarm      alarm = iota // idleTick, once no stream is owned
	shrinkAlarm                 // shrinkTick
	keepAliveAlarm              // keepAliveTick
	drainAlarm                  // drainTick, once the queue pair has failed
	portAlarm                   // probe, once the port is down
	alarmKinds
)

func (a *alarms) set(which alarm, at time.Time) { a.at[which], a.changed = at, true }
func (a *alarms) clear(which alarm)             { a.at[which] = time.Time{} }
func (a *alarms) isSet(which alarm) bool        { return !a.at[which].IsZero() }

// setClosing sets when to look after a stream that its owner has closed. No other is due later, for all
// wait for the same time.
func (a *alarms) setClosing(s *Stream, at time.Time) {
	a.clearClosing(s)
	s.closing.due, s.closing.place = at, a.closing.PushBack(s)
	a.changed = true
}

func (a *alarms) clearClosing(s *Stream) {
	if s.closing.place != nil {
		a.closing.Remove(s.closing.place)
		s.closing.place = nil
	}
}

// first is the time of the first alarm; zero: none is set.
func (a *alarms) first() (first time.Time) {
	earlier := func(at time.Time) {
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	for _, at := range a.at {
		earlier(at)
	}
	if s := a.closing.Front(); s != nil {
		earlier(s.Value.(*Stream).closing.due)
	}
	return first
}

// lookAfter does what is due. Called with mu held, which it may release meanwhile.
func (l *Link) lookAfter() {
	a, now := &l.alarms, l.now()
	for which, tick := range [alarmKinds]func(*Link){
		idleAlarm:      (*Link).idleTick,
		shrinkAlarm:    (*Link).shrinkTick,
		keepAliveAlarm: (*Link).keepAliveTick,
		drainAlarm:     (*Link).drainTick,
		portAlarm:      (*Link).probe,
	} {
		if at := a.at[which]; !at.IsZero() && !at.After(now) {
			a.clear(alarm(which))
			tick(l)
		}
	}
	for e := a.closing.Front(); e != nil; e = a.closing.Front() {
		s := e.Value.(*Stream)
		if s.closing.due.After(now) {
			break
		}
		a.clearClosing(s)
		s.closeTick()
	}
}

// tick is the link's timer.
func (l *Link) tick() {
	l.lock()
	defer l.unlock()
	l.timerAt = time.Time{}
	l.lookAfter()
	l.alarms.changed = true
}

// setTimer sets the timer to the first alarm, unless it fires before. Called with mu held.
func (l *Link) setTimer() {
	if l.alarms.changed = false; l.stage == closed {
		return
	}
	if at := l.alarms.first(); !at.IsZero() && (l.timerAt.IsZero() || at.Before(l.timerAt)) {
		l.timerAt = at
		l.timer.Reset(at.Sub(l.now()))
	}
}
