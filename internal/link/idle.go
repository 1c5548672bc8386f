package link

import (
	"net"
	"time"
)

// leaving is how far an idle link has come with its GOAWAYs.
type leaving struct {
	due   bool
	sent  uint64 // work requests that complete with ours; 0: not sent
	heard bool
}

// begun says whether no stream may begin any more.
func (g *leaving) begun() bool { return g.due || g.sent > 0 || g.heard }

// idleTime is how long a link of whose streams none is owned any more may stay: as
// long as the peer may take to end them, or to answer GOAWAY, at least. Called with
// mu held.
func (l *Link) idleTime() time.Duration {
	if l.mayLeave() {
		return l.cfg.Idle
	}
	return max(l.cfg.Idle, patience)
}

// idleTick ends a link of whose streams none is owned any more: with GOAWAY if
// they are over, and at once if the peer, or the device, has not answered.
func (l *Link) idleTick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.owned > 0 || l.stage == closed:
	case l.mayLeave():
		l.goAway()
	case !l.done() && l.outOfTouch(&l.putOff):
		l.idle.Reset(patience) // the peer's streams may not be over; the search ends by itself
	default:
		l.forced = true
		l.fail(net.ErrClosed)
		l.ep.Wake()
	}
}

// Leave has the link leave if it carries no stream.
func (l *Link) Leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mayLeave() {
		l.goAway()
	}
}

// mayLeave says whether the link carries no stream and has not begun to leave.
// Called with mu held.
func (l *Link) mayLeave() bool {
	return l.stage == up && l.live.Load() == 0 && l.owned == 0 && !l.leaving.begun()
}

// goAway tells the peer that the link leaves. Called with mu held, which it may
// release to send.
func (l *Link) goAway() {
	l.leaving.due = true
	l.putOff = time.Time{}
	l.idle.Reset(patience)
	l.trySend()
	l.watchNow()
}

// goAwayDue says whether to tell the peer that no stream will begin any more.
func (l *Link) goAwayDue() bool { return l.leaving.due && l.live.Load() == 0 }

// letGo has the link leave in a while, if nothing of it is owned any more, or at once
// if it has ended. Called with mu held.
func (l *Link) letGo() {
	if l.owned > 0 {
		return
	}
	l.putOff = time.Time{}
	l.idle.Reset(l.idleTime())
	if l.stage != up {
		l.ep.Wake()
	}
}
