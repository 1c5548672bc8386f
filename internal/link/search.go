package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/wire"
)

// seek begins to seek another queue pair.
func (l *Link) seek() {
	if l.m.HasReceived() {
		l.confirmed()
	}
	next, until := l.m.MovedAt().Add(attemptPause), l.m.LostAt().Add(l.cfg.ResumeTimeout)
	l.path.work.Go(func() {
		ctx, cancel := context.WithDeadline(l.path.ctx, until)
		defer cancel()
		l.withdrawFromLost()
		sleep(ctx, time.Until(next)) // a peer that breaks queue pairs again and again has to wait
		l.seekPath(ctx)
	})
}

// seekPath looks for another queue pair until it has one, or the peer is found to be
// gone, or ctx ends.
func (l *Link) seekPath(ctx context.Context) {
	if err := l.reconnect(ctx); err != nil {
		l.lock()
		defer l.unlock()
		l.m.NotResumed(err)
	}
}

// The first attempt over a route takes firstAttempt at most, so that another route is soon
// tried; but a machine with much to do may need longer, so where a link had no answer in time the
// next one to the peer may take twice as long, up to attemptTime, for the connection manager repeats
// a request that was lost only after 4 s; and up to longAttempt if it is the dialing side's and the
// route leads to the peer: the other side's next request ends it if its own was lost. A route is
// tried again attemptPause after it has failed at the earliest, one and a half times that at
// the latest, so that those that fail at once take up little time. Once the peer has answered,
// or has made a request, a side waits moveTime for each message, about as long as a queue pair
// takes to find that the peer's device does not answer; and twice as long for each of the next time
// if the keys did not come, for the peer's device may need that to register its memory.
const (
	firstAttempt = 250 * time.Millisecond
	attemptTime  = time.Second
	longAttempt  = 4 * time.Second
	attemptPause = 100 * time.Millisecond
	moveTime     = 4 * time.Second
)

// attempts are a link's attempts at another queue pair, in one search.
type attempts struct {
	peer  *searched
	lost  Path                // see lostPath
	tried map[route]time.Time // and when it may be again
	keys  time.Duration       // how long to wait for each message with the peer's
	step  int                 // to the next in the order of routes
	last  error               // of the last over a known route

	spared          bool      // a request of the peer's has come to nothing: the dialing side's next is not ended for another
	noListenerSince time.Time // where the peer was; zero: there may be one
}

// reconnect makes requests over one route after the other, in turn with other links, and
// takes up those of the peer, until one of either has brought another queue pair, or the peer
// is found to be gone, or ctx ends. The error is that of the last request over a known route.
func (l *Link) reconnect(ctx context.Context) error {
	t := &attempts{
		peer:  l.path.listener.join(l.path.peers[0]),
		lost:  l.lostPath(),
		tried: make(map[route]time.Time),
		keys:  moveTime,
		last:  errNoTurn,
	}
	defer l.path.listener.part(t.peer)
	for ctx.Err() == nil {
		var err error
		switch a := l.nextArrival(); {
		case a == nil && l.isUnconfirmed():
			err = l.awaitRequest(ctx)
		case a == nil:
			err = l.attempt(ctx, t)
		case t.spared:
			a.refuse(linkIsThere)
			err = l.attempt(ctx, t)
		default:
			err = l.takeUp(ctx, t, a)
			t.spared = l.active && err != nil
		}
		if err == nil || errors.Is(err, machine.ErrGone) {
			return err
		}
	}
	return t.last
}

// attempt makes the next request when it is due and the link has its turn, and goes on with
// the queue pair if the peer answers. It ends early when the peer makes a request.
func (l *Link) attempt(ctx context.Context, t *attempts) error {
	var least time.Duration
	if t.spared {
		least = longAttempt
	}
	waiting, stop := l.untilRequested(ctx, least)
	defer stop()
	all := l.routes()
	order := inOrder(all, t.lost)
	r := order[t.step%len(order)]
	if !sleep(waiting, time.Until(t.tried[r])) || !l.path.listener.attempts.Enter(waiting, t.peer.at) {
		return waiting.Err()
	}
	if other, ok := t.peer.answering(all); ok && time.Until(t.tried[other]) <= 0 {
		r = other
	}
	limit := attemptTime
	if l.active && r.known {
		limit = longAttempt
	}
	limit = min(limit, t.peer.limit(r.cards()))
	requesting, cancel := context.WithTimeout(waiting, limit)
	ep, err := l.request(requesting, r, t)
	came := unanswered
	switch {
	case err == nil || r.known && machine.Rejected(err) != nil:
		came = answered
	case requesting.Err() == context.DeadlineExceeded && waiting.Err() == nil:
		came = outOfTime
	}
	cancel()
	t.peer.note(r.cards(), came, limit)
	l.path.listener.attempts.Leave(t.peer.at)
	t.spared = false
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		testHookGaveWay(l)
		return err
	}
	if err == nil {
		err = l.goOver(ctx, t, ep)
	}
	if err == nil || errors.Is(err, machine.ErrGone) {
		return err
	}
	if r.known && (t.last == errNoTurn || ctx.Err() == nil) { // ctx ends the one that is under way
		t.last = unreached(r, err, len(all))
	}
	// Peers that have lost their queue pairs at the same time are not to try again at the same time.
	t.tried[r] = time.Now().Add(attemptPause + rand.N(attemptPause/2))
	t.step++
	if r.known && noListener(err) {
		t.step = slices.Index(order, r) // whether the peer is gone is known when that is so a second time: see peerIsGone
	}
	return err
}

// testHookGaveWay is for tests. It is called when an attempt has been ended for a request of the
// peer's.
var testHookGaveWay = func(*Link) {}

// errNoTurn reports that a link has waited for its turn to make an attempt until its time
// was over.
var errNoTurn = errors.New("too many other links were looking for their peers")

// takeUp goes on with the queue pair of a request of the peer's.
func (l *Link) takeUp(ctx context.Context, t *attempts, a *arrival) error {
	waiting, stop := l.untilRequested(ctx, 0)
	defer stop()
	if err := l.openAgain(a.ep); err != nil {
		a.refuse(wire.Reject{Busy: true, Reason: err.Error()})
		return err
	}
	answering, cancel := context.WithTimeout(waiting, moveTime)
	defer cancel()
	if err := a.ep.Accept(answering, a.request.Answer().Append(nil, l.path.sealTo(a.ep))); err != nil {
		_ = a.ep.Close()
		return err
	}
	return l.goOver(ctx, t, a.ep)
}

// goOver has the link go on over an endpoint that both sides have agreed on, and closes it if
// that fails. It ends early when the peer makes a request, for then it has lost this one.
func (l *Link) goOver(ctx context.Context, t *attempts, ep fabric.Endpoint) error {
	waiting, stop := l.untilRequested(ctx, 0)
	defer stop()
	err := l.move(waiting, ep, t.keys)
	if errors.Is(err, errNoKeys) {
		t.keys *= 2
	}
	if err != nil {
		_ = ep.Close()
	}
	return err
}

// sleep waits for a while, and reports whether ctx has not ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
