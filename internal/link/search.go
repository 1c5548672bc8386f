package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ringnet/ringnet/internal/wire"
)

// search is a link's search for another queue pair. It begins when the link loses its own.
// Guarded by Link.mu.
type search struct {
	lostAt time.Time // stays while the search lasts, and is read by it without mu

	// Of the attempt under way, or the last.
	over  route
	began time.Time
	end   context.CancelFunc // nil: there has been none

	// On the side that dialed the link: between which cards questions of the peer's have
	// come, and over which of those the next attempt is to go; zero: over any.
	questions []question
	next      route

	noListenerSince time.Time          // where the peer was; zero: there may be one
	newer           context.CancelFunc // on the other side: ends the attempt under way when another request comes; nil: there has been none
}

// seek begins to seek another queue pair. Called with mu held.
func (l *Link) seek() {
	l.enter(seeking)
	next := l.path.moved.Add(attemptPause)
	l.path.work.Go(func() {
		ctx, cancel := l.searchTime()
		defer cancel()
		l.leaveLost()
		sleep(ctx, time.Until(next)) // a peer that breaks queue pairs again and again has to wait
		l.seekPath(ctx)
	})
}

// searchTime is a context that ends when the search has taken Config.Resume.
func (l *Link) searchTime() (context.Context, context.CancelFunc) {
	return context.WithDeadline(l.path.ctx, l.path.search.lostAt.Add(l.cfg.Resume))
}

// seekPath looks for another queue pair until it has one, or the peer is found to be
// gone, or the time is over.
func (l *Link) seekPath(ctx context.Context) {
	err := l.moveToStandby(ctx)
	switch {
	case err == nil || errors.Is(err, errGone):
	case l.active:
		err = l.redial(ctx)
	default:
		err = l.awaitPeer(ctx)
	}
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.stage == seeking { // it may have ended for another reason meanwhile
			l.cause = notResumed(l.cause, time.Since(l.path.search.lostAt), err)
			l.end()
		}
	}
}

// An attempt to reach the peer takes attemptTime at most, for the connection manager
// repeats a request that was lost only after 4 s; but a machine with much to do may
// need longer, so each of the dialing side's attempts over a route that leads to the peer
// may take twice as long as the one before, up to longAttempt. If a request was lost, the
// peer's question ends such an attempt: see noteQuestion. A route is tried again
// attemptPause after it has failed at the earliest, one and a half times that at the
// latest, so that those that fail at once take up little time. Once the peer has answered,
// or has made a request, a side waits moveTime for each message, about as long as a queue
// pair takes to find that the peer's device does not answer.
const (
	attemptTime  = time.Second
	longAttempt  = 4 * time.Second
	attemptPause = 100 * time.Millisecond
	moveTime     = 4 * time.Second
)

// errGone reports that the peer does not have the link any more, or that the two cannot go
// on with it.
var errGone = errors.New("the peer has ended the link, or is gone")

// redial makes attempts until one brings another queue pair.
func (l *Link) redial(ctx context.Context) error {
	return l.attempts(ctx, longAttempt, func(each context.Context, r route) (goOn func() error, err error) {
		ep, err := l.dial(each, r)
		if err != nil {
			return nil, err
		}
		var attempt uint64
		if err = l.openAgain(ep); err == nil {
			attempt, err = l.request(each, r, ep, wire.ResumeRequest)
		}
		if err != nil {
			_ = ep.Close()
			return nil, err
		}
		return func() error {
			err := l.move(ctx, ep, attempt, nil)
			if err != nil {
				_ = ep.Close()
			}
			return err
		}, nil
	})
}

// awaitPeer waits for a request of the peer's. Meanwhile it asks the peer whether it has the
// link: the peer may not know yet that its queue pair is gone, or be gone itself.
func (l *Link) awaitPeer(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	asking := make(chan struct{})
	var asked error // why that has ended
	go func() {
		defer close(asking)
		asked = l.attempts(ctx, attemptTime, l.ask)
	}()
	defer func() { <-asking }()
	defer cancel()
	for {
		select {
		case a := <-l.path.arrivals:
			err := l.takeUp(ctx, a)
			if err == nil {
				return nil
			}
			_ = a.ep.Close()
			if errors.Is(err, errGone) {
				return err
			}
			l.attemptFailed(a.request.Attempt)
		case <-asking:
			return asked
		}
	}
}

// ask asks the peer for the link. The answer is always a rejection.
func (l *Link) ask(ctx context.Context, r route) (goOn func() error, err error) {
	ep, err := l.dial(ctx, r)
	if err != nil {
		return nil, err
	}
	least := l.cfg.options() // nothing will be sent
	least.SendQueue, least.RecvQueue, least.Sends, least.RemoteMemory = 1, 1, 0, 0
	if _, err = ep.Open(least); err == nil {
		if _, err = l.request(ctx, r, ep, wire.ResumeAsk); err == nil {
			err = errGone
		}
	}
	_ = ep.Close()
	return nil, err
}

// attempts calls attempt for one route after the other, in turn with other links, until an
// attempt is answered and the function that it returns succeeds, or the peer is found to be
// gone, or ctx ends. No attempt takes longer than longest. The error is that of the last
// attempt over a known route.
func (l *Link) attempts(ctx context.Context, longest time.Duration, attempt func(context.Context, route) (goOn func() error, err error)) error {
	turns := &l.path.returns.turns
	host := turns.join(l.remote.Addr())
	defer turns.leave(host)
	tried := make(map[route]trial)
	last := errNoTurn
	for step := 0; ; step++ {
		all := l.routes()
		order := inOrder(all)
		if !sleep(ctx, tried[order[step%len(order)]].pause()) {
			return last
		}
		turn := turns.take(ctx, host, l.remote.Port())
		if turn == nil {
			return last
		}
		if len(tried) == 0 {
			step = turn.ahead // others of the host's links try those before
		}
		r := order[step%len(order)]
		if found, ok := turns.found(turn, all); ok && tried[found].pause() <= 0 {
			r = found
		}
		r, each, cancel := l.begin(ctx, r, all, func(r route) time.Duration {
			return min(attemptTime<<tried[r].times, longest)
		})
		turns.begin(turn, r, cancel)
		goOn, err := attempt(each, r)
		cancel()
		turns.give(turn, err == nil || r.known && rejected(err))
		if err == nil {
			err = goOn()
		}
		switch {
		case err == nil || errors.Is(err, errGone):
			return err
		case r.known && (last == errNoTurn || ctx.Err() == nil): // ctx ends the one that is under way
			last = unreached(r, err, len(all))
		}
		tried[r] = tried[r].again()
		if r.known && noListener(err) {
			step = slices.Index(order, r) - 1 // whether the peer is gone is known when that is so a second time: see peerIsGone
		}
	}
}

// errNoTurn reports that a link has waited for its turn to make an attempt until its time
// was over.
var errNoTurn = errors.New("too many other links were looking for their peers")

// trial is what a search has seen of a route.
type trial struct {
	times int       // that it was tried, or so many that it makes no difference
	next  time.Time // the next is due
}

// pause is how long to wait before the route may be tried again.
func (t trial) pause() time.Duration { return time.Until(t.next) }

// again counts a try that has failed. Peers that have lost their queue pairs at the same
// time are not to try again at the same time, so the pause is random.
func (t trial) again() trial {
	return trial{min(t.times+1, 8), time.Now().Add(attemptPause + rand.N(attemptPause/2))}
}

// begin begins an attempt over a route, or over the one of all by which the peer has asked,
// and returns which. It ends when ctx does, and after the route's limit; or after
// attemptTime, if there is no reason to think that the route leads to the peer.
func (l *Link) begin(ctx context.Context, r route, all []route, limit func(route) time.Duration) (route, context.Context, context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	search := &l.path.search
	if i := slices.IndexFunc(all, search.next.sameAs); i >= 0 {
		r = all[i]
	}
	search.next = route{}
	most := limit(r)
	if !r.known && !slices.ContainsFunc(search.questions, func(h question) bool { return h.sameAs(r) }) {
		most = min(most, attemptTime)
	}
	search.over, search.began = r, time.Now()
	ctx, search.end = context.WithTimeout(ctx, most)
	return r, ctx, search.end
}

// noteQuestion notes that a question of the peer's has come between two cards: so there is a
// path, and the next attempt is to be there. The attempt under way ends if it has taken
// long: it has lost its request, or is over others. That is so once for each pair: where
// the peer asks again and again it is slow, and no path was lost meanwhile.
func (s *search) noteQuestion(r route) {
	i := slices.IndexFunc(s.questions, func(h question) bool { return h.sameAs(r) })
	if i < 0 {
		i = len(s.questions)
		s.questions = append(s.questions, question{route: r})
	}
	h, long := &s.questions[i], time.Since(s.began) > attemptTime
	if s.over.sameAs(r) && (!long || h.endedAttempt) {
		return
	}
	s.next = r
	if long && !h.endedAttempt && s.end != nil {
		h.endedAttempt = true
		s.end()
	}
}

// question is a pair of cards between which a question has come.
type question struct {
	route
	endedAttempt bool // an attempt has been ended for it
}

// untilAnother returns a context that ends when the request of a later attempt comes: the
// peer has given up the one that is under way.
func (l *Link) untilAnother(ctx context.Context, attempt uint64) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.active {
		l.path.search.newer = cancel
		if l.path.latest > attempt {
			cancel()
		}
	}
	return ctx, cancel
}

// sleep waits for a while, and reports whether ctx has not ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
