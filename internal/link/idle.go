package link

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
//	goAwaySaid    it has been posted
type goAway uint8

const (
	goAwayUnsaid goAway = iota
	goAwayDue
	goAwaySaid
)

// leaving is how far an idle link is on its way to its end. Guarded by
// Link.mu.
type leaving struct {
	goAway   goAway
	after    uint64 // goAwaySaid: work requests that complete with it and with the last record behind it
	received bool   // the peer's GOAWAY has come

	deferredSince time.Time // when the end of an idle link was first put off: see disconnectedLately; zero: it has not been
}

// begun reports whether no stream may begin any more.
func (g *leaving) begun() bool { return g.goAway != goAwayUnsaid }

// sayGoAway makes a GOAWAY due, unless it has been sent.
func (g *leaving) sayGoAway() {
	if g.goAway == goAwayUnsaid {
		g.goAway = goAwayDue
	}
}

// delivered reports whether the peer's device has this side's GOAWAY and all records.
func (g *leaving) delivered(slots *credit.Slots) bool {
	return g.goAway == goAwaySaid && slots.Completed(g.after)
}

// idleTime is how long a link may stay whose streams all are closed by their owners: at
// least as long as the peer may take to end them, or to answer GOAWAY. Called with mu held.
func (l *Link) idleTime() time.Duration {
	if l.mayLeave() {
		return l.cfg.idle()
	}
	return max(l.cfg.idle(), closeTimeout)
}

// idleTick ends a link whose streams all are closed by their owners: with GOAWAY if they
// are over, and at once if the peer, or the device, has not answered. Called with mu held.
func (l *Link) idleTick() {
	switch {
	case l.streams.owned > 0 || l.stage == closed:
	case l.mayLeave():
		l.goAway()
	case !l.done() && l.disconnectedLately(&l.leaving.deferredSince):
		l.alarms.set(idleAlarm, l.now().Add(closeTimeout)) // the peer's streams may not be over; the search ends at its own limit
	default:
		l.fail(errGivenUp)
		l.enter(closed) // the engine waits for nothing that has not completed
	}
}

// Leave ends the link, with GOAWAY, if the owners of all of its streams have closed them: now, or when
// the peer's end of the last one has come.
func (l *Link) Leave() {
	l.lock()
	defer l.unlock()
	if l.streams.owned > 0 {
		return
	}
	l.cfg.LinkIdle = 0
	if l.mayLeave() {
		l.goAway()
	}
}

// retire has no more stream begin on a link that this side accepted, tells the peer so, and ends the
// link when it carries none.
func (l *Link) retire() {
	l.lock()
	defer l.unlock()
	if l.mayLeave() {
		l.goAway()
		return
	}
	l.leaving.sayGoAway()
}

// mayLeave reports whether the link carries no stream and has not begun to leave.
// Called with mu held.
func (l *Link) mayLeave() bool {
	return l.stage == up && l.streams.live.Load() == 0 && l.streams.owned == 0 && !l.leaving.begun()
}

// goAway has GOAWAY sent. Called with mu held.
func (l *Link) goAway() {
	l.leaving.sayGoAway()
	l.leaving.deferredSince = time.Time{}
	l.alarms.set(idleAlarm, l.now().Add(closeTimeout))
}

// maySayGoAway reports whether GOAWAY is due, behind all other records that are: so no ACCEPT comes
// behind it. The side that was dialed sends it while streams live on, for the dialer to know at once
// that no other OPEN will be accepted: this process may be stopped before it is asked. The dialer
// sends its own behind the ends of its streams, when none is left. Called with mu held.
func (l *Link) maySayGoAway() bool {
	return l.leaving.goAway == goAwayDue && (!l.active || l.streams.live.Load() == 0)
}

// receivedGoAway takes that the peer begins no stream any more, or accepts none: not those
// either that it has not answered. Called with mu held.
func (l *Link) receivedGoAway() error {
	if l.leaving.received {
		return errors.New("a second GOAWAY")
	}
	l.leaving.received = true
	l.leaving.sayGoAway()
	for _, s := range l.streams.byNumber {
		if s != nil && s.opening {
			s.touch()
		}
	}
	return nil
}

// startIdleTimer sets the alarm of idleTick if nothing of the link is owned any more. Called with mu held.
func (l *Link) startIdleTimer() {
	if l.streams.owned > 0 {
		return
	}
	l.leaving.deferredSince = time.Time{}
	l.alarms.set(idleAlarm, l.now().Add(l.idleTime()))
}
