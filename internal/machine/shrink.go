package machine

import (
	"slices"
	"time"

	"github.com/ringnet/ringnet/ring"
)

// A link frees what it does not need: after a while, or at once, if others lack memory.

// shrinkAfter is the time between two calls of shrinkTick. A ring to which nothing comes for
// once to twice as long is given back.
func (l *Link) shrinkAfter() time.Duration { return max(l.cfg.idle(), time.Second) }

// ShrinkLater sets the alarm of shrinkTick, unless it is set.
func (l *Link) ShrinkLater() {
	if !l.alarms.isSet(shrinkAlarm) {
		l.alarms.set(shrinkAlarm, l.now().Add(l.shrinkAfter()))
	}
}

// noteGrown enters the stream among those whose ring may be larger than at first.
func (l *Link) noteGrown(s *Stream) {
	if !s.inbox.grown {
		s.inbox.grown = true
		s.useRing()
		l.grown = append(l.grown, s)
	}
	l.ShrinkLater()
}

// shrinkTick shrinks the rings to which nothing has come since the last tick, and
// has the slabs freed in which nothing is.
func (l *Link) shrinkTick() {
	if l.stage == Up {
		l.shrinkRings(func(s *Stream) bool {
			before := s.inbox.receivedAtTick
			s.inbox.receivedAtTick = s.ledger.Received()
			return before == s.inbox.receivedAtTick
		})
		if s := &l.send.staging; len(s.areas) > 1 {
			if !s.grown() || s.headAtTick == s.in.ring.Head() {
				l.shrinkStaging() // again, if what was left there has been sent since
			}
			s.headAtTick = s.in.ring.Head()
		}
		l.Trim = true
	}
	if len(l.grown) > 0 || len(l.send.staging.areas) > 1 || l.stage.Pathless() { // it may be up again
		l.ShrinkLater()
	}
}

// shrinkRings shrinks the idle ones of the rings that are larger than at first, and
// returns how many bytes that will free.
func (l *Link) shrinkRings(idle func(s *Stream) bool) (freed int) {
	l.grown = slices.DeleteFunc(l.grown, func(s *Stream) bool {
		if idle(s) {
			freed += s.shrink()
		}
		s.inbox.grown = max(s.inbox.held.Size(), s.inbox.offered.Size()) > l.cfg.FirstRing()
		return !s.inbox.grown
	})
	if len(l.grown) == 0 {
		l.rings.DropSpare()
	}
	return freed
}

// Unused is for how long nothing has come to a larger ring, nor CREDIT been sent for it, if it is to be
// given up when memory is short. Whether it was ever full says nothing: CREDIT makes rings grow, too.
const Unused = time.Second

// Shrink shrinks the rings and the staging memory that are not used, and returns how many bytes that will free.
func (l *Link) Shrink() int {
	freed := l.shrinkRings(func(s *Stream) bool { return l.since(s.inbox.lastUsed) > Unused })
	if s := &l.send.staging; s.grown() && l.since(s.used) > Unused {
		freed += l.shrinkStaging()
	}
	return freed
}

// Rings is the memory that the link's rings are cut from.
func (l *Link) Rings() *ring.Arena { return &l.rings }

// TakeRing returns memory for the ring of a stream that begins, or how many bytes more are to be registered for that.
func (l *Link) TakeRing() (held ring.Piece, lacks int) { return l.rings.Take(l.cfg.FirstRing()) }

// GiveRing takes back memory of a ring.
func (l *Link) GiveRing(p ring.Piece) {
	if l.rings.Give(p) {
		l.ShrinkLater()
	}
}
