package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// The handshake of another queue pair for a link. The side that dialed the link makes
// requests, one attempt after the other; the other side accepts or rejects them. Meanwhile
// that side asks whether the first still has the link.

// resumption is the next message of this side's of the given kind.
func (l *Link) resumption(kind wire.ResumptionKind) wire.Resumption {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := wire.Resumption{Kind: kind, Link: l.path.own.Link, Attempt: max(l.path.madeBy, l.path.failed)}
	if kind != wire.ResumeAsk {
		l.path.latest++
		r.Attempt = l.path.latest
	}
	return r
}

// sealTo is the seal of what this side sends to the peer in the handshake of an endpoint.
func (p *path) sealTo(ep fabric.Endpoint) wire.Seal {
	return wire.Seal{Secret: p.own.Secret, From: ep.LocalAddr().Addr(), To: ep.RemoteAddr().Addr()}
}

// sealFrom is the seal of what the peer sends.
func (p *path) sealFrom(ep fabric.Endpoint) wire.Seal {
	return wire.Seal{Secret: p.own.Secret, From: ep.RemoteAddr().Addr(), To: ep.LocalAddr().Addr()}
}

// dial makes an endpoint for a route to the peer.
func (l *Link) dial(ctx context.Context, r route) (fabric.Endpoint, error) {
	return l.path.returns.Fabric.Dial(ctx, netip.AddrPortFrom(r.local, 0), r.remote)
}

// request asks the peer to take the queue pair of an endpoint that was dialed, as another
// for the link, a standby or a mere question, which the kind says. It returns the number of
// the attempt.
func (l *Link) request(ctx context.Context, r route, ep fabric.Endpoint, kind wire.ResumptionKind) (attempt uint64, err error) {
	m := l.resumption(kind)
	answer, err := ep.Connect(ctx, m.Append(nil, l.path.sealTo(ep)))
	if err != nil {
		if l.peerIsGone(r, err) {
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

// peerIsGone reports whether the error of a request over a route says that the peer has not the
// link any more, or is gone. That there is no listener has to be so twice, attemptPause apart at
// least: the listener of a device that is being added again may come a moment after its
// address.
func (l *Link) peerIsGone(r route, err error) bool {
	if !r.known {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	since := &l.path.search.noListenerSince
	switch {
	case !noListener(err):
		*since = time.Time{}
		return refused(err)
	case since.IsZero():
		*since = time.Now()
	}
	return time.Since(*since) >= attemptPause
}

// errStranger reports an answer without the peer's seal.
var errStranger = errors.New("another process or host answers at the peer's address")

// refused reports whether the error is a rejection by the peer, with a reason that stays, or
// that no listener was found. A rejection without a reason is a kernel's: an answer was not
// confirmed in time, for example.
func refused(err error) bool {
	var reject *fabric.RejectError
	if !errors.As(err, &reject) {
		return false
	}
	said := wire.DecodeReject(reject.Private)
	return reject.Reason == fabric.RejectNoListener || said.Reason != "" && !said.Busy
}

// rejected reports whether a request has reached a host that rejected it.
func rejected(err error) bool {
	var reject *fabric.RejectError
	return errors.As(err, &reject)
}

// noListener reports whether a request has found no listener.
func noListener(err error) bool {
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

// arrival is a queue pair of the peer's for a link that has lost its own.
type arrival struct {
	ep      fabric.Endpoint
	request wire.Resumption
}

// returned hands an arrival to the link, which may not know yet that its queue pair is gone.
// It returns whether the link takes it, and if not, how to reject it. One arrival waits at a
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

// expect returns whether an arrival may wait for the link to take it. If so, the link has
// lost its queue pair, and expect says so to it.
func (l *Link) expect(a arrival) (may bool, reject wire.Reject) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case a.request.Attempt <= l.path.latest:
		return false, noSuchLink // another has been made meanwhile
	case l.path.expecting:
		return false, linkIsThere
	}
	l.path.expecting = true
	l.path.latest = a.request.Attempt
	if l.path.search.newer != nil {
		l.path.search.newer()
	}
	l.fail(&lostError{syscall.ECONNRESET, errReturned})
	return true, reject
}

// attemptFailed notes that an attempt has failed on this side. The other may take its queue
// pair for sound: the next question tells it.
func (l *Link) attemptFailed(attempt uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.path.failed = max(l.path.failed, attempt)
}

// asked handles a question of the peer's, which has come between two cards. The peer has
// lost the queue pair of the attempt, and those before: if this side does not know that yet
// it loses its own (the attempt may have been a standby's). Else a search may try those
// cards next. asked returns whether the link is there: it may have ended while its streams
// still have owners.
func (l *Link) asked(attempt uint64, r route) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stage == up && attempt >= l.path.madeBy:
		l.fail(&lostError{syscall.ECONNRESET, errReturned})
	case l.stage == seeking && slices.ContainsFunc(l.path.peers, func(a netip.AddrPort) bool { return a.Addr() == r.remote.Addr() }):
		l.path.search.noteQuestion(r)
	}
	return !l.stage.final()
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
