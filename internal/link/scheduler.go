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
// no answer. So few are under way at once in this process: as many as requests may wait at a
// peer, and so many of those to one process that those to a process that does not answer hold
// up none of the others.
const (
	attemptsAtOnce    = reconnectBacklog
	attemptsToProcess = 4
)

// retryScheduler is which link may make the next attempt. The zero retryScheduler is ready for use.
type retryScheduler struct {
	mu       sync.Mutex // guards what follows
	underWay int
	waiting  []*turn // the oldest first
	peers    map[netip.AddrPort]*searched
}

// searched is a process to which links seek another queue pair. Guarded by retryScheduler.mu.
type searched struct {
	at       netip.AddrPort // where it takes links up again
	links    int            // that seek one to it
	underWay int
	answers  cardPair                   // the route over which a link was answered last, unless another has not been since
	limits   map[cardPair]time.Duration // of the next attempt over a route; none: firstAttempt
}

// turn is the turn that an attempt waits for.
type turn struct {
	peer    *searched
	granted chan struct{} // closed when it has come
}

// join begins the search of a link for its peer, a process.
func (s *retryScheduler) join(at netip.AddrPort) *searched {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[at]
	if p == nil {
		if s.peers == nil {
			s.peers = make(map[netip.AddrPort]*searched)
		}
		p = &searched{at: at, limits: make(map[cardPair]time.Duration)}
		s.peers[at] = p
	}
	p.links++
	return p
}

// leave ends the search of a link.
func (s *retryScheduler) leave(p *searched) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.links--; p.links == 0 {
		delete(s.peers, p.at)
	}
}

// take waits for a turn for an attempt. It returns false if ctx ends before.
func (s *retryScheduler) take(ctx context.Context, p *searched) bool {
	own := &turn{p, make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, own)
	s.grant()
	s.mu.Unlock()
	select {
	case <-own.granted:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, own); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	} else {
		s.release(p)
	}
	return false
}

// limit is how long an attempt over a route may take: longer where others had no answer in time,
// for a device that makes one queue pair after the other has much to do.
func (s *retryScheduler) limit(p *searched, over cardPair) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(p.limits[over], firstAttempt)
}

// outcome is what has come of an attempt.
type outcome uint8

const (
	unanswered outcome = iota // it has failed, or was given up
	outOfTime
	answered
)

// give ends a turn, with what has come of the attempt over a route, which had a limit.
func (s *retryScheduler) give(p *searched, over cardPair, came outcome, limit time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if came == outOfTime {
		p.limits[over] = max(p.limits[over], min(2*limit, longAttempt))
	}
	switch {
	case came == answered:
		p.answers = over
	case p.answers == over:
		p.answers = cardPair{}
	}
	s.release(p)
}

// release ends a turn, and grants the next. Called with mu held.
func (s *retryScheduler) release(p *searched) {
	p.underWay--
	s.underWay--
	s.grant()
}

// grant grants as many turns as may be under way. Called with mu held.
func (s *retryScheduler) grant() {
	for s.underWay < attemptsAtOnce {
		i := s.next()
		if i < 0 {
			return
		}
		own := s.waiting[i]
		s.waiting = slices.Delete(s.waiting, i, i+1)
		own.peer.underWay++
		s.underWay++
		close(own.granted)
	}
}

// next is the index of the turn that is granted next: the oldest to a process with the fewest
// attempts under way; -1 if there is none. Called with mu held.
func (s *retryScheduler) next() int {
	best, fewest := -1, attemptsToProcess
	for i, own := range s.waiting {
		if own.peer.underWay < fewest {
			best, fewest = i, own.peer.underWay
		}
	}
	return best
}

// answering returns, of some routes to a process, the one over which another link was answered.
func (s *retryScheduler) answering(p *searched, routes []route) (r route, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(routes, func(r route) bool { return r.cards() == p.answers }); i >= 0 {
		return routes[i], true
	}
	return route{}, false
}
