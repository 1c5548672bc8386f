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

// What the two sides say to each other in the handshake of another queue pair: the side
// that dialed the link makes requests, over one attempt after the other, which the other
// side takes up, or refuses; that one asks meanwhile.

// resumption is the next of this side's, of a kind.
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
	since := &l.path.search.unheard
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

// rejected says whether a request has come to where the peer's host is, and was not wanted
// there.
func rejected(err error) bool {
	var reject *fabric.RejectError
	return errors.As(err, &reject)
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

// arrival is a queue pair of the peer's for a link that has lost its own.
type arrival struct {
	ep      fabric.Endpoint
	request wire.Resumption
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
	if l.path.search.newer != nil {
		l.path.search.newer()
	}
	l.fail(&lostError{syscall.ECONNRESET, errReturned})
	return true, reject
}

// hadNothing takes note that an attempt has come to nothing on this side. The other may
// take its queue pair for sound, and has to be told.
func (l *Link) hadNothing(attempt uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.path.void = max(l.path.void, attempt)
}

// asked takes note of a question of the peer's, which has come between two cards: the peer
// has lost the queue pair of an attempt, and those before, which this side may not know yet
// (the attempt may have been at a standby); or this side may try those cards. It says
// whether the link is there: it may have ended while its streams have owners yet.
func (l *Link) asked(attempt uint64, r route) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stage == up && attempt >= l.path.over:
		l.fail(&lostError{syscall.ECONNRESET, errReturned})
	case l.stage == seeking && slices.ContainsFunc(l.path.peers, func(a netip.AddrPort) bool { return a.Addr() == r.remote.Addr() }):
		l.path.search.hear(r)
	}
	return !l.final
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
