package link

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Many links may have lost their queue pairs at once: those to a host that is gone, or all of a
// card. Each attempt to have another takes a queue pair, and may take seconds if there is no
// answer. So as many attempts are under way at once in this process as requests may wait at a
// peer, and few of them to one process. What one link learns of the routes to a process, its others
// use.
const (
	attemptsAtOnce    = reconnectBacklog
	attemptsToProcess = 4
)

// searched is a process to which links seek another queue pair.
type searched struct {
	at    netip.AddrPort // where it takes links up again
	links int            // that seek one to it; guarded by ReconnectListener.mu

	mu      sync.Mutex // guards what follows
	answers cardPair   // the route over which a link was answered last, unless another has not been since
	limits  map[cardPair]time.Duration
}

// join begins the search of a link for its peer, a process.
func (r *ReconnectListener) join(at netip.AddrPort) *searched {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.searched[at]
	if p == nil {
		if r.searched == nil {
			r.searched = make(map[netip.AddrPort]*searched)
		}
		p = &searched{at: at, limits: make(map[cardPair]time.Duration)}
		r.searched[at] = p
	}
	p.links++
	return p
}

// part ends the search of a link.
func (r *ReconnectListener) part(p *searched) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.links--; p.links == 0 {
		delete(r.searched, p.at)
	}
}

// limit is how long the next attempt over a route may take: firstAttempt, or longer where others
// had no answer in time, for a device that makes one queue pair after the other has much to do.
func (p *searched) limit(over cardPair) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.limits[over], firstAttempt)
}

// outcome is what has come of an attempt.
type outcome uint8

const (
	unanswered outcome = iota // it has failed, or was given up
	outOfTime
	answered
)

// note notes what has come of an attempt over a route, which had a limit.
func (p *searched) note(over cardPair, came outcome, limit time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if came == outOfTime {
		p.limits[over] = max(p.limits[over], min(2*limit, longAttempt))
	}
	switch {
	case came == answered:
		p.answers = over
	case p.answers == over:
		p.answers = cardPair{}
	}
}

// answering returns, of some routes to the process, the one over which another link was answered.
func (p *searched) answering(routes []route) (r route, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.IndexFunc(routes, func(r route) bool { return r.cards() == p.answers }); i >= 0 {
		return routes[i], true
	}
	return route{}, false
}
