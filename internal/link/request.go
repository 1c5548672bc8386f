package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/wire"
)

// The handshake of another queue pair for a link. Either side makes requests, one after the
// other, and the other side accepts or rejects them. Two that cross are settled by the sides'
// roles: the side that was dialed gives up its own for the peer's, and the side that dialed
// waits a moment for the answer to its own.

// requests are the numbers of requests on a link. Each side counts its own.
type requests struct {
	made     uint32 // by this side
	answered uint32 // the last of those that the peer has accepted
	arrived  uint32 // the last of the peer's
}

// stale reports whether a request is one that the peer has given up: it has made another
// since, or has accepted one of this side's. Repetitions are stale, too.
func (n *requests) stale(r wire.Resumption) bool {
	return r.Attempt <= n.arrived || r.Taken < n.answered
}

// nextRequest is this side's next request. The side that dialed the link does not give it up for
// one of the peer's before the peer has had time to answer, or not at all if it is to be spared.
func (l *Link) nextRequest(spared bool) wire.Resumption {
	l.lock()
	defer l.unlock()
	if l.active {
		l.path.patientUntil = time.Now().Add(attemptPause)
		if spared {
			l.path.patientUntil = time.Now().Add(longAttempt)
		}
	}
	l.path.made++
	return wire.Resumption{Kind: wire.ResumeRequest, Passive: !l.active, Link: l.path.own.Link, Attempt: l.path.made, Taken: l.path.taken()}
}

// taken is the last of the peer's requests that this side has taken up or refused. One that waits
// may be accepted yet, and then requests that were made meanwhile are given up: see stale.
func (p *path) taken() uint32 {
	if p.arrival != nil {
		return p.arrival.request.Attempt - 1
	}
	return p.arrived
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
	return l.path.listener.Fabric.Dial(ctx, netip.AddrPortFrom(r.local, 0), r.remote)
}

// request makes a queue pair, and requests that the peer goes on over it.
func (l *Link) request(ctx context.Context, r route, t *attempts) (fabric.Endpoint, error) {
	ep, err := l.dial(ctx, r)
	if err != nil {
		return nil, err
	}
	if err = l.openAgain(ep); err == nil {
		err = l.requestOver(ctx, r, ep, t)
	}
	if err != nil {
		_ = ep.Close()
		return nil, err
	}
	return ep, nil
}

// requestOver is the handshake of a request.
func (l *Link) requestOver(ctx context.Context, r route, ep fabric.Endpoint, t *attempts) error {
	m := l.nextRequest(t.spared)
	answer, err := ep.Connect(ctx, m.Append(nil, l.path.sealTo(ep)))
	if err != nil {
		if r.known && t.peerIsGone(err) {
			err = fmt.Errorf("%w: %w", machine.ErrGone, err)
		}
		return err
	}
	got, err := wire.DecodeResumption(answer)
	if err != nil || !l.path.sealFrom(ep).Fits(answer) || got != m.Answer() {
		_ = ep.Reject(wire.Reject{Reason: "an answer that is not about the request"}.Append(nil))
		return errStranger
	}
	l.wasAnswered(m.Attempt)
	return ep.Confirm()
}

// wasAnswered notes that the peer has accepted a request. It has given up its own.
func (l *Link) wasAnswered(attempt uint32) {
	l.lock()
	defer l.unlock()
	l.path.requests.answered = attempt
	if a := l.path.arrival; a != nil && a.request.Taken < attempt {
		l.path.arrival = nil
		go a.refuse(linkIsThere)
	}
}

// peerIsGone reports whether the error of a request over a known route says that the peer has
// not the link any more, or is gone. That there is no listener has to be so twice, attemptPause
// apart at least: the listener of a device that is being added again may come a moment after its
// address.
func (t *attempts) peerIsGone(err error) bool {
	switch {
	case !noListener(err):
		t.noListenerSince = time.Time{}
		return refused(err)
	case t.noListenerSince.IsZero():
		t.noListenerSince = time.Now()
	}
	return time.Since(t.noListenerSince) >= attemptPause
}

// errStranger reports an answer without the peer's seal.
var errStranger = errors.New("another process or host answers at the peer's address")

// refused reports whether the error is a rejection by the peer, with a reason that stays. One
// without a reason is a kernel's: an answer was not confirmed in time, for example.
func refused(err error) bool {
	reject := machine.Rejected(err)
	if reject == nil {
		return false
	}
	said := wire.DecodeReject(reject.Private)
	return said.Reason != "" && !said.Busy
}

// noListener reports whether a request has found no listener.
func noListener(err error) bool {
	reject := machine.Rejected(err)
	return reject != nil && reject.Reason == fabric.RejectNoListener
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

// arrival is a request of the peer's, with its queue pair.
type arrival struct {
	ep      fabric.Endpoint
	request wire.Resumption
}

// refuse ends an arrival that the link does not take.
func (a *arrival) refuse(answer wire.Reject) {
	_ = a.ep.Reject(answer.Append(nil))
	_ = a.ep.Close()
}

// arrived hands an arrival to the link, which may not know yet that its queue pair is gone. One
// waits at a time, however many the peer makes: the last. The link may have ended while its
// streams still have owners.
func (l *Link) arrived(a *arrival) {
	l.lock()
	defer l.unlock()
	p := &l.path
	switch {
	case l.m.Stage().Final():
		go a.refuse(noSuchLink)
		return
	case l.active && !l.started(), p.requests.stale(a.request): // the link has not started yet, or the peer has given this up
		go a.refuse(linkIsThere)
		return
	case p.arrival != nil:
		go p.arrival.refuse(linkIsThere)
	}
	p.arrived = a.request.Attempt
	p.arrival = a
	l.confirmed()
	if p.interrupt != nil {
		time.AfterFunc(time.Until(p.patientUntil), p.interrupt)
	}
	if l.started() { // else start looks for the arrival
		l.m.Fail(&machine.LostError{Errno: syscall.ECONNRESET, Reason: errPeerReconnects})
	}
}

var errPeerReconnects = errors.New("the peer has lost the queue pair")

// nextArrival takes over the arrival that waits, if there is one.
func (l *Link) nextArrival() *arrival {
	l.lock()
	defer l.unlock()
	a := l.path.arrival
	l.path.arrival = nil
	return a
}

// untilRequested returns a context that ends when the peer has made a request, which waits
// to be taken, but not before least has passed.
func (l *Link) untilRequested(ctx context.Context, least time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	l.lock()
	defer l.unlock()
	l.path.interrupt, l.path.patientUntil = cancel, time.Now().Add(least)
	if l.path.arrival != nil {
		time.AfterFunc(least, cancel)
	}
	return ctx, cancel
}
