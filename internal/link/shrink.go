package link

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/budget"
)

// A link frees what it does not need: after a while, or at once, if another link or dial of
// this process lacks memory.

// shrinking is when a link gives back memory that it does not use. Guarded by
// Link.mu.
type shrinking struct {
	grown []*Stream // whose rings may be larger than at first
}

// shrinkAfter is the time between two calls of shrinkTick. A ring to which nothing comes for
// once to twice as long is given back.
func (l *Link) shrinkAfter() time.Duration { return max(l.cfg.idle(), time.Second) }

// shrinkLater sets the alarm of shrinkTick, unless it is set. Called with mu held.
func (l *Link) shrinkLater() {
	if !l.alarms.isSet(shrinkAlarm) {
		l.alarms.set(shrinkAlarm, l.now().Add(l.shrinkAfter()))
	}
}

// noteGrown enters the stream among those whose ring may be larger than at first. Called
// with mu held.
func (l *Link) noteGrown(s *Stream) {
	if !s.inbox.grown {
		s.inbox.grown = true
		s.useRing()
		l.memory.shrinking.grown = append(l.memory.shrinking.grown, s)
	}
	l.shrinkLater()
}

// shrinkTick shrinks the rings to which nothing has come since the last tick, and
// frees the slabs in which nothing is. Called with mu held, which it releases meanwhile.
func (l *Link) shrinkTick() {
	if l.stage == up {
		l.shrinkRings(func(s *Stream) bool {
			before := s.inbox.receivedAtTick
			s.inbox.receivedAtTick = s.ledger.Received()
			return before == s.inbox.receivedAtTick
		})
		l.trim()
	}
	if len(l.memory.shrinking.grown) > 0 || l.stage.pathless() { // it may be up again
		l.shrinkLater()
	}
}

// trim frees the slabs in which nothing is, and returns how many bytes. Called with mu held, which it
// releases meanwhile.
func (l *Link) trim() (freed int) {
	rings := &l.memory.rings
	for l.stage == up {
		s := rings.takeEmpty()
		if s == nil {
			break
		}
		if !l.free(s.memory) {
			rings.keep(s)
			continue
		}
		rings.freed(s)
		freed += s.size
	}
	return freed
}

// shrinkRings shrinks the idle ones of the rings that are larger than at first, and
// returns how many bytes that will free. Called with mu held.
func (l *Link) shrinkRings(idle func(s *Stream) bool) (freed int) {
	t := &l.memory.shrinking
	t.grown = slices.DeleteFunc(t.grown, func(s *Stream) bool {
		if idle(s) {
			freed += s.shrink()
		}
		s.inbox.grown = max(s.inbox.held.size, s.inbox.offered.size) > l.cfg.firstRing()
		return !s.inbox.grown
	})
	if len(t.grown) == 0 {
		l.memory.rings.dropSpare()
	}
	return freed
}

// unused is for how long nothing has come to a larger ring, nor CREDIT been sent for it, if it is to be
// given up when memory is short. Whether it was ever full says nothing: CREDIT makes rings grow, too.
const unused = time.Second

// freeUnneeded frees at once what the link does not need, all of it if it carries nothing, and
// returns how many bytes it has freed or will free.
func (l *Link) freeUnneeded() int {
	l.lock()
	defer l.unlock()
	if l.streams.owned == 0 && (l.streams.live.Load() == 0 || l.stage != up) {
		if l.mayLeave() {
			l.goAway()
		}
		if !l.stage.pathless() { // else it keeps what it has for as long as it seeks
			return l.memory.account.Bytes()
		}
	}
	if l.stage != up {
		return 0
	}
	now := l.now()
	shrunk := l.shrinkRings(func(s *Stream) bool { return now.Sub(s.inbox.lastUsed) > unused })
	return shrunk + l.trim()
}

// reclaim has links free what they do not need, and returns how many bytes they have freed
// or will free. It takes each link's lock.
func reclaim(links []*Link) (freed int) {
	for _, l := range links {
		freed += l.freeUnneeded()
	}
	return freed
}

// within are the links of a budget.
func within(b *budget.Budget) []*Link {
	return slices.DeleteFunc(allLinks(), func(l *Link) bool { return l.cfg.Budget != b })
}

// holders are the links that have the memory that the link lacks, by the error for that: the
// link itself if it has reached its own limit, else all of its budget.
func (l *Link) holders(err error) []*Link {
	var shortage *budget.ShortageError
	if errors.As(err, &shortage) && shortage.Of == budget.LinkMemory {
		return []*Link{l}
	}
	return within(l.cfg.Budget)
}

// reclaimOn has holders free memory if err is a shortage, and notes in err whether that will
// pass. Called with no link's lock held.
func reclaimOn(err error, holders []*Link) error {
	var shortage *budget.ShortageError
	if errors.As(err, &shortage) {
		shortage.Releasing = reclaim(holders) > 0
	}
	return err
}

// reclaiming is set while reclaimInBackground is under way.
var reclaiming atomic.Bool

// reclaimInBackground is reclaim in a goroutine, for callers that hold a link's lock.
func reclaimInBackground(links []*Link) {
	if reclaiming.CompareAndSwap(false, true) {
		go func() {
			defer reclaiming.Store(false)
			reclaim(links)
		}()
	}
}
