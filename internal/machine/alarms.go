package machine

import (
	"container/list"
	"time"
)

// alarms are the times at which a link is to look again, whatever happens meanwhile.
type alarms struct {
	at      [alarmKinds]time.Time // zero: not set
	closing list.List             // of the streams with afterClose.due set, the first due first
	changed bool                  // one has been set since NextAlarm
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

// AlarmsChanged reports whether NextAlarm may say another time than it has.
func (l *Link) AlarmsChanged() bool { return l.alarms.changed }

// NextAlarm is when Tick is to be called at the latest; zero: nothing is due at any time.
func (l *Link) NextAlarm() (first time.Time) {
	a := &l.alarms
	a.changed = false
	if l.stage == Closed {
		return first
	}
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

// Tick does what is due. What has completed has been taken before.
func (l *Link) Tick() {
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
	a.changed = true
}
