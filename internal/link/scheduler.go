package link

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Many links may have lost their queue pairs at once: those to a host that is gone, or all
// of a card. Each attempt to have another takes a queue pair, and may take seconds if there is
// no answer. So few are under way at once, and those to one host do not delay those to others.
// Of the links to a host, the one that has waited longest is next. They begin with different
// routes; when one has been answered, the others try its route at once.

// As many attempts are under way at once in this process as requests may wait at a peer,
// and so many of those are to one host that a few that have lost their requests hold up
// none of the others.
const (
	attemptsAtOnce = reconnectBacklog
	attemptsToHost = 4
)

// retryScheduler is which link may make the next attempt. The zero retryScheduler is ready for use.
type retryScheduler struct {
	mu       sync.Mutex // guards what follows
	underWay int
	queued   uint64 // ever
	hosts    map[netip.Addr]*searched
}

// searched is a host to which links seek another queue pair. Guarded by retryScheduler.mu.
type searched struct {
	addr     netip.Addr
	links    int // that seek one to it
	underWay []*turn
	waiting  []*turn          // the oldest first
	late     map[cardPair]int // attempts over a route that had no answer in time, each with more time than the one before
	found    cardPair         // over which a link was answered last, unless another has not been since
}

// turn is the turn that an attempt waits for, or has.
type turn struct {
	host    *searched
	port    uint16 // to which the link was dialed
	number  uint64
	granted chan struct{} // closed when it has come
	ahead   int           // attempts to the host that were under way then

	// Guarded by retryScheduler.mu, once it has come.
	told  cardPair // searched.found, when the route was chosen
	route cardPair
	late  int                // searched.late of the route, when it was chosen
	end   context.CancelFunc // of the attempt; nil: it has not begun
}

// join begins the search of a link for its peer on a host.
func (s *retryScheduler) join(addr netip.Addr) *searched {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[addr]
	if h == nil {
		if s.hosts == nil {
			s.hosts = make(map[netip.Addr]*searched)
		}
		h = &searched{addr: addr, late: make(map[cardPair]int)}
		s.hosts[addr] = h
	}
	h.links++
	return h
}

// leave ends the search of a link.
func (s *retryScheduler) leave(h *searched) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.links--; h.links == 0 {
		delete(s.hosts, h.addr)
	}
}

// take waits for a turn for an attempt of a link that was dialed to a port of a host. It
// returns nil if ctx ends before.
func (s *retryScheduler) take(ctx context.Context, h *searched, port uint16) *turn {
	s.mu.Lock()
	s.queued++
	own := &turn{host: h, port: port, number: s.queued, granted: make(chan struct{})}
	h.waiting = append(h.waiting, own)
	s.grant()
	s.mu.Unlock()
	select {
	case <-own.granted:
		return own
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(h.waiting, own); i >= 0 {
		h.waiting = slices.Delete(h.waiting, i, i+1)
	} else {
		s.release(own)
	}
	return nil
}

// begin notes the route that is tried in a turn, and returns the context of the attempt, for which
// there is more time where others over the route had no answer in time: a device that makes one queue
// pair after the other has much to do. The attempt ends if a link was answered over another route since
// this one was chosen.
func (s *retryScheduler) begin(ctx context.Context, own *turn, r cardPair, longest time.Duration) (context.Context, context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own.route, own.late = r, own.host.late[r]
	ctx, own.end = context.WithTimeout(ctx, min(firstAttempt<<own.late, longest))
	if found := own.host.found; found != (cardPair{}) && found != own.told && r != found {
		own.end()
	}
	return ctx, own.end
}

// outcome is what has come of an attempt.
type outcome uint8

const (
	unanswered outcome = iota // it has failed, or was given up
	outOfTime
	answered
)

// give ends a turn. If the attempt was answered, over a route that is new, attempts over
// others to the host end.
func (s *retryScheduler) give(own *turn, came outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := own.host
	if came == outOfTime {
		h.late[own.route] = max(h.late[own.route], min(own.late+1, maxLate))
	}
	switch known := h.found == own.route; {
	case came == answered && !known:
		h.found = own.route
		for _, other := range h.underWay {
			if other.end != nil && other.route != h.found {
				other.end()
			}
		}
	case came != answered && known:
		h.found = cardPair{}
	}
	s.release(own)
}

// release ends a turn, and grants the next. Called with mu held.
func (s *retryScheduler) release(own *turn) {
	h := own.host
	h.underWay = slices.DeleteFunc(h.underWay, func(other *turn) bool { return other == own })
	s.underWay--
	s.grant()
}

// grant grants as many turns as may be under way. Called with mu held.
func (s *retryScheduler) grant() {
	for s.underWay < attemptsAtOnce {
		h := s.next()
		if h == nil {
			return
		}
		i := h.next()
		own := h.waiting[i]
		h.waiting = slices.Delete(h.waiting, i, i+1)
		own.ahead = len(h.underWay)
		h.underWay = append(h.underWay, own)
		s.underWay++
		close(own.granted)
	}
}

// next is the host to which the next attempt is made: of those with the fewest under way,
// the one whose first turn has waited longest; nil if there is none. Called with mu held.
func (s *retryScheduler) next() *searched {
	var best *searched
	for _, h := range s.hosts {
		if len(h.waiting) == 0 || len(h.underWay) == attemptsToHost {
			continue
		}
		if best == nil || len(h.underWay) < len(best.underWay) ||
			len(h.underWay) == len(best.underWay) && h.waiting[0].number < best.waiting[0].number {
			best = h
		}
	}
	return best
}

// next is the index of the waiting turn that is granted next: the first to a port with the
// fewest attempts under way. Called with retryScheduler.mu held.
func (h *searched) next() (best int) {
	fewest := attemptsToHost
	for i, own := range h.waiting {
		same := 0
		for _, other := range h.underWay {
			if other.port == own.port {
				same++
			}
		}
		if same < fewest {
			best, fewest = i, same
		}
		if fewest == 0 {
			break
		}
	}
	return best
}

// found returns, of some routes to the host of a turn, the one over which another link was
// answered.
func (s *retryScheduler) found(own *turn, routes []route) (r route, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own.told = own.host.found
	if i := slices.IndexFunc(routes, func(r route) bool { return r.cards() == own.told }); i >= 0 {
		return routes[i], true
	}
	return route{}, false
}
