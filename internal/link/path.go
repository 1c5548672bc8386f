package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// A link outlives its queue pair if it lost that while both processes live. What has
// arrived is taken from the queue pair first, so each side knows how many messages of
// the other's it has received. The link goes on over its standby (standby.go), if that
// is sound; or else the side that dialed the link dials another queue pair, to where the
// other side takes links up again (returns.go), over one pair of cards after the other.
// The memory of the link goes over to it (move.go); then each side sends again what has
// not been received (log.go). Streams see none of this: they wait.

// path is what a link does without its queue pair. Guarded by Link.mu, but for what
// is set before the link is in use.
type path struct {
	// Set before the link is in use.
	returns *Returns           // where this side takes the link up again, at own.Port; nil: it does not
	own     wire.Return        // what both sides know of the link, and what this side tells
	peers   []netip.AddrPort   // where the peer takes it up: at its address of the link, and of its other cards; none: it does not
	life    context.Context    // that of the link
	endLife context.CancelFunc // called when it has ended

	work      sync.WaitGroup // the goroutines of all this; begun with mu held, until the link is closed
	lostAt    time.Time      // the queue pair
	moved     time.Time      // when the link went on over the one that it has; zero: it is the first
	attempt   uint64         // the last that this side has made, or taken
	over      uint64         // the one that has made the queue pair; 0: it is the first
	void      uint64         // the last that came to nothing here
	arrivals  chan arrival
	expecting bool               // one waits for its turn to be sent to arrivals
	began     time.Time          // active side: the long attempt under way, or the last
	restart   context.CancelFunc // ends it; nil: there has been none since the queue pair was lost
	restarted bool               // by the peer's question, since then
	unheard   time.Time          // since when nobody listens where the peer was; zero: somebody may
	newer     context.CancelFunc // passive side: ends what is under way when another request comes; nil: nothing has been
	settled   chan struct{}      // see awaitPath; nil if nobody waits
	homeless  bool               // the memory is no endpoint's; set and looked at by those in work alone
	moving    bool               // the memory is about to be another endpoint's: nobody else frees any
	unwanted  []*Buffer          // closed meanwhile
	lost      []fabric.Endpoint  // that the link has had before, for the engine to close
	standby   *standby
	making    bool // of a standby is under way
}

// resumes says whether both sides would take the link up again.
func (p *path) resumes() bool { return len(p.peers) > 0 }

// arrival is a queue pair of the peer's for a link that has lost its own.
type arrival struct {
	ep      fabric.Endpoint
	request wire.Resumption
}

// passing says whether the link may outlive the loss of its queue pair, for this
// reason: it is not that either side has ended it, and there is something to go on
// with. Called with mu held.
func (l *Link) passing(cause error) bool {
	if !l.path.resumes() || l.forced || l.receive.broken || l.done() {
		return false
	}
	var protocol *ProtocolError
	return !errors.Is(cause, net.ErrClosed) && !errors.As(cause, &protocol)
}

// done says whether neither side has anything more to say to the other: no stream is
// left, and GOAWAY, which comes behind what ended them, has come here or is there. A
// side without a stream cannot know that its peer has none either, which may still
// lack a FINACK. Called with mu held.
func (l *Link) done() bool {
	g := &l.leaving
	return l.live.Load() == 0 && (g.heard || g.sent > 0 && l.send.slots.Completed(g.sent))
}

// awaitPath waits until it is settled whether a link without a queue pair gets another.
// Called with mu held, which it releases meanwhile.
func (l *Link) awaitPath() {
	for l.pathless() {
		if l.path.settled == nil {
			l.path.settled = make(chan struct{})
		}
		settled := l.path.settled
		l.mu.Unlock()
		<-settled
		l.mu.Lock()
	}
}

// settlePath has those go on who wait for that. Called with mu held.
func (p *path) settlePath() {
	if p.settled != nil {
		close(p.settled)
		p.settled = nil
	}
}

// pathless says whether the link has lost its queue pair, and may have another yet. Called
// with mu held.
func (l *Link) pathless() bool { return l.stage == draining && !l.final || l.stage == seeking }

// outOfTouch says whether the peer may have answered and could not be heard, a moment ago
// at least. Called with mu held.
func (l *Link) outOfTouch() bool { return l.pathless() || time.Since(l.path.moved) < patience }

// seek begins to seek another queue pair. Called with mu held.
func (l *Link) seek() {
	l.stage = seeking
	l.path.restart, l.path.restarted = nil, false
	l.path.unheard = time.Time{}
	next := l.path.moved.Add(attemptPause)
	l.path.work.Go(func() {
		ctx, cancel := l.searchTime()
		defer cancel()
		l.leaveLost()
		sleep(ctx, time.Until(next)) // whoever breaks queue pairs again and again has to wait
		l.seekPath(ctx)
	})
}

// searchTime ends when the link has to have another queue pair.
func (l *Link) searchTime() (context.Context, context.CancelFunc) {
	return context.WithDeadline(l.path.life, l.path.lostAt.Add(l.cfg.Resume))
}

// leavePath ends all that, and frees the memory of a link that has no endpoint for it.
// Called when the link is closed.
func (l *Link) leavePath() {
	l.path.close(l.active)
	l.path.work.Wait()
	l.dropStandby()
	if l.path.homeless {
		all, _ := l.registered()
		for _, m := range all {
			m.Free()
		}
	}
}

// takesUp has this side take the link up again, and tell the peer of its other cards
// than the one with the given address.
func (p *path) takesUp(r *Returns, local netip.Addr) error {
	port, err := r.open()
	if err == nil {
		p.returns, p.own.Port, p.own.Others = r, port, r.others(local)
		p.arrivals = make(chan arrival)
		p.life, p.endLife = context.WithCancel(context.Background())
	}
	return err
}

// meet takes note of where the peer takes the link up again, by what both know of it. A
// link with the number of another does not outlive its queue pair.
func (p *path) meet(peer wire.Return, l *Link) {
	if !p.returns.reserve(returnKey{p.own.Link, l.active}) {
		return
	}
	p.peers = []netip.AddrPort{netip.AddrPortFrom(l.remote.Addr(), peer.Port)}
	for _, a := range peer.Others {
		if a.IsGlobalUnicast() {
			p.peers = append(p.peers, netip.AddrPortFrom(a, peer.Port))
		}
	}
}

// start has requests for the link brought to it, which now can deal with them. Called
// with mu held.
func (p *path) start(l *Link) {
	if p.resumes() {
		p.returns.enter(returnKey{p.own.Link, l.active}, l)
	}
}

// end stops the search for another queue pair, and whatever is done for a standby.
func (p *path) end() {
	if p.returns != nil {
		p.endLife()
	}
}

// close ends all that, for a link that is no more.
func (p *path) close(active bool) {
	if p.returns != nil {
		p.endLife()
		if p.resumes() {
			p.returns.leave(returnKey{p.own.Link, active})
		}
		p.returns.close()
	}
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
			l.cause = sought(l.cause, time.Since(l.path.lostAt), err)
			l.end()
		}
	}
}

// An attempt to reach the peer takes attemptTime at most, for the connection manager
// repeats a request that was lost only after 4 s; but a machine with much to do may
// need longer, so each of the dialing side's attempts over a route may take twice as long as
// the one before, up to longAttempt. What is lost by that where requests were lost is
// made good by the peer's question: see asked. A route is tried again attemptPause
// after it has failed at the earliest, one and a half times that at the latest, so that
// those that fail at once take up little time. Once the peer has answered, or a request of its has
// come, a side waits moveTime for each message, about what a queue pair takes to find that the
// peer's device does not answer.
const (
	attemptTime  = time.Second
	longAttempt  = 4 * time.Second
	attemptPause = 100 * time.Millisecond
	moveTime     = 4 * time.Second
)

// errGone reports a peer that has not the link any more, or with which it cannot go on.
var errGone = errors.New("the peer has given the link up, or is gone")

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

// awaitPeer waits for the peer to come back. Meanwhile it asks the peer whether it has
// the link, which may not know yet that its queue pair is gone, or be gone itself.
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
			l.hadNothing(a.request.Attempt)
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

// attempts calls attempt, for one route after the other, until it is answered and what it
// goes on with succeeds, or the peer is found to be gone, or ctx ends. None takes longer
// than longest. An error says what came of the last over a route that the link has gone
// over, the first ones of all.
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
		turn := turns.take(ctx, host)
		if turn == nil {
			return last
		}
		if len(tried) == 0 {
			step = turn.ahead // others of the host's links try those before
		}
		r := order[step%len(order)]
		if found, ok := turns.found(host, all); ok && tried[found].pause() <= 0 {
			r = found
		}
		limit := min(attemptTime<<tried[r].times, longest)
		each, cancel := context.WithTimeout(ctx, limit)
		if limit > attemptTime {
			l.mayRestart(time.Now(), cancel)
		}
		turns.begin(turn, r, cancel)
		goOn, err := attempt(each, r)
		cancel()
		turns.give(turn, err == nil)
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
		if r.known && unheard(err) {
			step-- // whether the peer is gone is known when that is so a second time: see toldGone
		}
	}
}

// errNoTurn reports a peer that no attempt could be made to reach.
var errNoTurn = errors.New("too many other links sought their peers")

// trial is what a search has seen of a route.
type trial struct {
	times int       // that it was tried, or so many that it makes no difference
	next  time.Time // the next is due
}

// pause is how long to wait before the route may be tried again.
func (t trial) pause() time.Duration { return time.Until(t.next) }

// again takes note that it was tried in vain. Peers that have lost their queue pairs at
// the same time are not to try again at the same time.
func (t trial) again() trial {
	return trial{min(t.times+1, 8), time.Now().Add(attemptPause + rand.N(attemptPause/2))}
}

// sleep waits for a while, and says whether ctx has not ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

func (l *Link) resumption(kind wire.ResumptionKind) wire.Resumption {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := wire.Resumption{Kind: kind, Link: l.path.own.Link, Attempt: max(l.path.over, l.path.void)}
	if kind != wire.ResumeAsk {
		l.path.attempt++
		r.Attempt = l.path.attempt
	}
	return r
}

// sealTo is that of what this side tells the peer in the handshake of an endpoint.
func (p *path) sealTo(ep fabric.Endpoint) wire.Seal {
	return wire.Seal{Secret: p.own.Secret, From: ep.LocalAddr().Addr(), To: ep.RemoteAddr().Addr()}
}

// sealFrom is that of what the peer tells.
func (p *path) sealFrom(ep fabric.Endpoint) wire.Seal {
	return wire.Seal{Secret: p.own.Secret, From: ep.RemoteAddr().Addr(), To: ep.LocalAddr().Addr()}
}

// dial makes an endpoint for a route to the peer.
func (l *Link) dial(ctx context.Context, r route) (fabric.Endpoint, error) {
	return l.path.returns.Fabric.Dial(ctx, netip.AddrPortFrom(r.local, 0), r.remote)
}

// request has the peer take the queue pair of an endpoint that was dialed for what the
// kind says, and returns the number of the attempt.
func (l *Link) request(ctx context.Context, r route, ep fabric.Endpoint, kind wire.ResumptionKind) (attempt uint64, err error) {
	m := l.resumption(kind)
	answer, err := ep.Connect(ctx, m.Append(nil, l.path.sealTo(ep)))
	if err != nil {
		if l.toldGone(r, err) {
			err = fmt.Errorf("%w: %w", errGone, err)
		}
		return 0, err
	}
	got, err := wire.DecodeResumption(answer)
	if err != nil || !l.path.sealFrom(ep).Fits(answer) || got.Kind != wire.ResumeAnswer || got.Attempt != m.Attempt {
		_ = ep.Reject(wire.Reject{Reason: "an answer that is not about the request"}.Append(nil))
		return 0, errStranger
	}
	return m.Attempt, ep.Confirm()
}

// toldGone says whether the error of a request over a route says that the peer has not the
// link any more, or is gone. That nobody listens has to be so twice, attemptPause apart at
// least: the listener of a device that is being added again may come a moment after its
// address.
func (l *Link) toldGone(r route, err error) bool {
	if !r.known {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	since := &l.path.unheard
	switch {
	case !unheard(err):
		*since = time.Time{}
		return refused(err)
	case since.IsZero():
		*since = time.Now()
	}
	return time.Since(*since) >= attemptPause
}

// errStranger reports an answer that is not the peer's.
var errStranger = errors.New("somebody else answers where the peer was")

// refused says whether the peer, if it is the peer, has not the link any more, or is
// gone. A rejection without a reason is a kernel's: an answer was not confirmed in time,
// say.
func refused(err error) bool {
	var reject *fabric.RejectError
	if !errors.As(err, &reject) {
		return false
	}
	said := wire.DecodeReject(reject.Private)
	return reject.Reason == fabric.RejectNoListener || said.Reason != "" && !said.Busy
}

// unheard says whether nobody listens where a request went.
func unheard(err error) bool {
	var reject *fabric.RejectError
	return errors.As(err, &reject) && reject.Reason == fabric.RejectNoListener
}

// openAgain makes the queue pair of an endpoint, like the one that was lost.
func (l *Link) openAgain(ep fabric.Endpoint) error {
	limits, err := ep.Open(l.cfg.options())
	if err != nil {
		return err
	}
	if receives := l.cfg.RecvQueue + credit.LinkControlReceives; limits.SendQueue < l.cfg.SendQueue || limits.RecvQueue < receives || limits.Inline < l.limits.Inline {
		return fmt.Errorf("the device grants queues of %d and %d work requests, with %d bytes inline: the link has %d, %d and %d",
			limits.SendQueue, limits.RecvQueue, limits.Inline, l.cfg.SendQueue, receives, l.limits.Inline)
	}
	return ep.PostRecv(l.cfg.RecvQueue + credit.LinkControlReceives)
}

// returned hands an arrival to the link, which may not know yet that its queue pair
// is gone. It says whether the link takes it, or how to reject it. One arrival waits at a
// time, however many the peer makes.
func (l *Link) returned(a arrival) (taken bool, reject wire.Reject) {
	if taken, reject = l.expect(a); !taken {
		return false, reject
	}
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.path.expecting = false
	}()
	late := time.NewTimer(drainTime)
	defer late.Stop()
	select {
	case l.path.arrivals <- a:
		return true, reject
	case <-l.gone:
		return false, noSuchLink
	case <-late.C:
		return false, linkIsThere
	}
}

// expect says whether an arrival may wait for the link to take it, which then has lost its
// queue pair.
func (l *Link) expect(a arrival) (may bool, reject wire.Reject) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case a.request.Attempt <= l.path.attempt:
		return false, noSuchLink // another has been made meanwhile
	case l.path.expecting:
		return false, linkIsThere
	}
	l.path.expecting = true
	l.path.attempt = a.request.Attempt
	if l.path.newer != nil {
		l.path.newer()
	}
	l.fail(&lostError{syscall.ECONNRESET, errReturned})
	return true, reject
}

// untilAnother returns a context that ends when a request for a later attempt comes than the
// one that is under way: the peer has given that up.
func (l *Link) untilAnother(ctx context.Context, attempt uint64) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.active {
		l.path.newer = cancel
		if l.path.attempt > attempt {
			cancel()
		}
	}
	return ctx, cancel
}

// hadNothing takes note that an attempt has come to nothing on this side. The other may
// take its queue pair for sound, and has to be told.
func (l *Link) hadNothing(attempt uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.path.void = max(l.path.void, attempt)
}

// asked takes note that the peer has lost the queue pair of an attempt, and those before,
// which this side may not know yet (the attempt may have been at a standby); and that there is a path to it: an attempt that has taken long has
// lost its request, and another will do better. That is so once: where the peer asks
// again and again, it is slow, and no path was lost meanwhile. It says whether the link is
// there: it may have ended while its streams have owners yet.
func (l *Link) asked(attempt uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &l.path
	switch {
	case l.stage == up && attempt >= p.over:
		l.fail(&lostError{syscall.ECONNRESET, errReturned})
	case l.stage == seeking && p.restart != nil && !p.restarted && time.Since(p.began) > attemptTime:
		p.restarted = true
		p.restart()
	}
	return !l.final
}

// mayRestart takes note of a long attempt, which began then, and of how to end it.
func (l *Link) mayRestart(began time.Time, end context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.path.began, l.path.restart = began, end
}

var errReturned = errors.New("the peer has lost the queue pair")

// takeUp answers an arrival and goes on with it.
func (l *Link) takeUp(ctx context.Context, a arrival) error {
	if err := l.openAgain(a.ep); err != nil {
		_ = a.ep.Reject(wire.Reject{Busy: true, Reason: err.Error()}.Append(nil))
		return err
	}
	ctx, cancel := l.untilAnother(ctx, a.request.Attempt)
	defer cancel()
	answering, cancel := context.WithTimeout(ctx, moveTime)
	defer cancel()
	if err := l.answer(answering, a); err != nil {
		return err
	}
	return l.move(ctx, a.ep, a.request.Attempt, nil)
}

// answer accepts an arrival.
func (l *Link) answer(ctx context.Context, a arrival) error {
	m := wire.Resumption{Kind: wire.ResumeAnswer, Link: l.path.own.Link, Attempt: a.request.Attempt}
	return a.ep.Accept(ctx, m.Append(nil, l.path.sealTo(a.ep)))
}
