package machine

import (
	"errors"
	"time"

	"github.com/ringnet/ringnet/credit"
)

// goAway is how far this side is with its GOAWAY, which tells the peer that no stream
// will begin any more.
//
//	goAwayUnsaid  streams may begin             → goAwayDue, when the link has been idle for
//	                                              Config.LinkIdle, or is to leave, or its listener
//	                                              is closed, or the peer's GOAWAY has come
//	goAwayDue     those there are live on        → goAwaySaid, when maySayGoAway
//	goAwaySaid    it has been sent
type goAway uint8

const (
	goAwayUnsaid goAway = iota
	goAwayDue
	goAwaySaid
)

// goingAway is how far an idle link is on its way to its end.
type goingAway struct {
	goAway        goAway
	last          sent      // goAwaySaid: it, and the last record behind it
	received      bool      // the peer's GOAWAY has come
	deferredSince time.Time // when the end of an idle link was first put off: see disconnectedLately; zero: it has not been
}

// begun reports whether no stream may begin any more.
func (g *goingAway) begun() bool { return g.goAway != goAwayUnsaid }

// sayGoAway makes a GOAWAY due, unless it has been sent.
func (g *goingAway) sayGoAway() {
	if g.goAway == goAwayUnsaid {
		g.goAway = goAwayDue
	}
}

// delivered reports whether the peer's device has this side's GOAWAY and all records.
func (g *goingAway) delivered(slots *credit.Slots) bool {
	return g.goAway == goAwaySaid && g.last.completed(slots)
}

// Own counts something whose owner has to close it, and Disown that it has: a stream, or a buffer.
func (l *Link) Own() { l.streams.owned++ }

func (l *Link) Disown() {
	if l.streams.owned--; l.streams.owned > 0 {
		return
	}
	idle := l.cfg.idle()
	if !l.mayLeave() {
		idle = max(idle, CloseTimeout) // as long as the peer may take to end its streams, or to answer GOAWAY
	}
	l.goingAway.deferredSince = time.Time{}
	l.alarms.set(idleAlarm, l.now().Add(idle))
}

// idleTick ends a link whose streams all are closed by their owners: with GOAWAY if they
// are over, and at once if the peer, or the device, has not answered.
func (l *Link) idleTick() {
	switch {
	case l.streams.owned > 0 || l.stage == Closed:
	case l.mayLeave():
		l.goAway()
	case !l.done() && l.disconnectedLately(&l.goingAway.deferredSince):
		l.alarms.set(idleAlarm, l.now().Add(CloseTimeout)) // the peer's streams may not be over; the search ends at its own limit
	default:
		l.Fail(errGivenUp)
		l.enter(Closed) // nothing waits for what has not completed
	}
}

// GoAway ends the link, with GOAWAY, if the owners of all of its streams have closed them: now, or when
// the peer's end of the last one has come.
func (l *Link) GoAway() {
	if l.streams.owned > 0 {
		return
	}
	l.cfg.LinkIdle = 0
	if l.mayLeave() {
		l.goAway()
	}
}

// Retire has no more stream begin on a link that this side accepted, tells the peer so, and ends the
// link when it carries none.
func (l *Link) Retire() {
	if l.mayLeave() {
		l.goAway()
		return
	}
	l.goingAway.sayGoAway()
}

// GoAwayUnneeded ends the link, with GOAWAY, if it carries nothing, and reports whether nothing of it is needed.
func (l *Link) GoAwayUnneeded() bool {
	if l.streams.owned > 0 || l.streams.live > 0 && l.stage == Up {
		return false
	}
	if l.mayLeave() {
		l.goAway()
	}
	return !l.stage.Pathless() // else it keeps what it has for as long as it seeks
}

// mayLeave reports whether the link carries no stream and has not begun to leave.
func (l *Link) mayLeave() bool {
	return l.stage == Up && l.streams.live == 0 && l.streams.owned == 0 && !l.goingAway.begun()
}

// goAway has GOAWAY sent.
func (l *Link) goAway() {
	l.goingAway.sayGoAway()
	l.goingAway.deferredSince = time.Time{}
	l.alarms.set(idleAlarm, l.now().Add(CloseTimeout))
}

// maySayGoAway reports whether GOAWAY is due, behind all other records that are: so no ACCEPT comes
// behind it. The side that was dialed sends it while streams live on, for the dialer to know at once
// that no other OPEN will be accepted: this process may be stopped before it is asked. The dialer
// sends its own behind the ends of its streams, when none is left.
func (l *Link) maySayGoAway() bool {
	return l.goingAway.goAway == goAwayDue && (!l.active || l.streams.live == 0)
}

// receivedGoAway takes that the peer begins no stream any more, or accepts none: not those
// either that it has not answered.
func (l *Link) receivedGoAway() error {
	if l.goingAway.received {
		return errors.New("a second GOAWAY")
	}
	l.goingAway.received = true
	l.goingAway.sayGoAway()
	for _, s := range l.streams.byNumber {
		if s != nil && s.opening {
			s.touch()
		}
	}
	return nil
}

// disconnectedLately reports whether the link lacks its queue pair, or has lacked it less than
// CloseTimeout ago: the peer may have answered, and the answer could not arrive. Then the caller waits on
// for the answer. The first call sets *since, and the wait ends when it has taken longer
// than a search may, for a peer may break queue pairs again and again.
func (l *Link) disconnectedLately(since *time.Time) bool {
	if !l.stage.Pathless() && l.since(l.path.moved) >= CloseTimeout {
		return false
	}
	if since.IsZero() {
		*since = l.now()
	}
	return l.since(*since)-CloseTimeout < l.cfg.ResumeTimeout
}
