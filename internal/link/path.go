package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// A link outlives its queue pair if it lost that while both processes live. What has
// arrived is taken from the queue pair first, so each side knows how many messages of
// the other's it has received. The side that dialed the link dials another queue
// pair, to where the other side takes links up again (returns.go), and each tells the
// other how many that are. The memory of the link goes over to the other queue pair,
// where it has other keys, of which the sides tell each other; then each sends again
// what has not been received (log.go). Streams see none of this: they wait.

// path is what a link does without its queue pair. Guarded by Link.mu, but for what
// is set before the link is in use.
type path struct {
	// Set before the link is in use.
	returns *Returns       // where this side takes the link up again, at own.Port; nil: it does not
	own     wire.Return    // what both sides know of the link, and that port
	peer    netip.AddrPort // where the peer does; the zero value: it does not

	lostAt   time.Time // the queue pair
	attempt  uint64    // the last that this side has made, or taken
	arrivals chan arrival
	stop     context.CancelFunc // of seekPath
	done     chan struct{}      // closed when seekPath has ended
	homeless bool               // the memory is no endpoint's
	moves    int                // how often the link has gone on over another queue pair
}

// resumes says whether both sides would take the link up again.
func (p *path) resumes() bool { return p.peer.IsValid() }

// arrival is a queue pair of the peer's for a link that has lost its own.
type arrival struct {
	ep      fabric.Endpoint
	request wire.Resumption
}

// passing says whether the link may outlive the loss of its queue pair, for this
// reason: it is not that either side has ended it, and there is something to go on
// with. Called with mu held.
func (l *Link) passing(cause error) bool {
	if !l.path.resumes() || l.forced || l.receive.broken || l.live.Load() == 0 {
		return false
	}
	var protocol *ProtocolError
	return !errors.Is(cause, net.ErrClosed) && !errors.As(cause, &protocol)
}

// seek begins to seek another queue pair. Called with mu held.
func (l *Link) seek() {
	l.stage = seeking
	ctx, stop := context.WithDeadline(context.Background(), l.path.lostAt.Add(l.cfg.Resume))
	done := make(chan struct{})
	l.path.stop, l.path.done = stop, done
	go func() {
		defer close(done)
		l.seekPath(ctx)
	}()
}

// stopSeeking ends that, and frees the memory of a link that has no endpoint for it.
// Called when the link is closed.
func (l *Link) stopSeeking() {
	if l.path.stop != nil {
		l.path.stop()
		<-l.path.done
	}
	if l.path.homeless {
		all, _ := l.registered()
		for _, m := range all {
			m.Free()
		}
	}
	l.path.close(l.active)
}

// takesUp has this side take the link up again.
func (p *path) takesUp(r *Returns) error {
	port, err := r.open()
	if err == nil {
		p.returns, p.own.Port = r, port
		p.arrivals = make(chan arrival)
	}
	return err
}

// meet takes note of where the peer takes the link up again, by what both know of it.
func (p *path) meet(port uint16, l *Link) {
	p.peer = netip.AddrPortFrom(l.remote.Addr(), port)
	p.returns.enter(returnKey{p.own.Link, l.active}, l)
}

// close ends that.
func (p *path) close(active bool) {
	if p.returns != nil {
		p.returns.leave(returnKey{p.own.Link, active})
		p.returns.close()
	}
}

// seekPath looks for another queue pair until it has one, or the peer is found to be
// gone, or the time is over.
func (l *Link) seekPath(ctx context.Context) {
	seek := l.awaitPeer
	if l.active {
		seek = l.redial
	}
	if err := seek(ctx); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.stage == seeking { // it may have ended for another reason meanwhile
			l.end()
		}
	}
}

// An attempt to reach the peer takes attemptTime at most: the connection manager
// repeats a request that was lost only after 4 s. The next is made attemptPause after
// the last at the earliest.
const (
	attemptTime  = time.Second
	attemptPause = 100 * time.Millisecond
)

// errGone reports a peer that has not the link any more.
var errGone = errors.New("the peer has given the link up, or is gone")

// redial makes attempts until one brings another queue pair.
func (l *Link) redial(ctx context.Context) error {
	return attempts(ctx, func(ctx context.Context) error {
		request := l.resumption(wire.ResumeRequest)
		ep, answer, err := l.request(ctx, request)
		if err != nil {
			return err
		}
		switch got, err := wire.DecodeResumption(answer); {
		case err != nil, !wire.AuthenticResumption(answer, l.path.own.Secret), got.Kind != wire.ResumeAnswer, got.Attempt != request.Attempt:
			_ = ep.Reject(wire.Reject{Reason: "an answer that is not about the request"}.Append(nil))
			_ = ep.Close()
			return errGone
		default:
			if err = ep.Confirm(); err == nil {
				err = l.move(ctx, ep, got.Received)
			}
			if err != nil {
				_ = ep.Close()
			}
			return err
		}
	})
}

// awaitPeer waits for the peer to come back, and finds out meanwhile whether it is
// there at all.
func (l *Link) awaitPeer(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	asking := make(chan struct{})
	go func() {
		defer close(asking)
		cancel(attempts(ctx, func(ctx context.Context) error {
			ep, _, err := l.request(ctx, l.resumption(wire.ResumeAsk))
			if err == nil { // it is not for it to accept
				_ = ep.Close()
				return errGone
			}
			return err
		}))
	}()
	defer func() { <-asking }()
	defer cancel(nil)
	for {
		select {
		case a := <-l.path.arrivals:
			err := l.takeUp(ctx, a)
			if err == nil {
				return nil
			}
			_ = a.ep.Close()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// attempts calls attempt until it succeeds, or finds that the peer is gone, or ctx
// ends.
func attempts(ctx context.Context, attempt func(context.Context) error) error {
	for {
		began := time.Now()
		each, cancel := context.WithTimeout(ctx, attemptTime)
		err := attempt(each)
		cancel()
		if err == nil || errors.Is(err, errGone) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(time.Until(began.Add(attemptPause))):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *Link) resumption(kind wire.ResumptionKind) wire.Resumption {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kind == wire.ResumeRequest {
		l.path.attempt++
	}
	r := l.ledger.Received()
	return wire.Resumption{
		Kind:     kind,
		Link:     l.path.own.Link,
		Attempt:  l.path.attempt,
		Received: wire.Header{Data: r.Data, Records: r.Records},
	}
}

// request sends a request to where the peer takes links up, and returns the endpoint
// and the answer.
func (l *Link) request(ctx context.Context, r wire.Resumption) (fabric.Endpoint, []byte, error) {
	ep, err := l.path.returns.Fabric.Dial(ctx, netip.AddrPortFrom(l.local.Addr(), 0), l.path.peer)
	if err != nil {
		return nil, nil, err
	}
	if err = l.openAgain(ep); err == nil {
		var answer []byte
		if answer, err = ep.Connect(ctx, r.Append(nil, l.path.own.Secret)); err == nil {
			return ep, answer, nil
		}
	}
	_ = ep.Close()
	var reject *fabric.RejectError
	if errors.As(err, &reject) && (reject.Reason == fabric.RejectNoListener ||
		reject.Reason == fabric.RejectConsumer && !wire.DecodeReject(reject.Private).Busy) {
		err = fmt.Errorf("%w: %w", errGone, err)
	}
	return nil, nil, err
}

// openAgain makes the queue pair of an endpoint, like the one that was lost.
func (l *Link) openAgain(ep fabric.Endpoint) error {
	limits, err := ep.Open(l.cfg.options())
	if err != nil {
		return err
	}
	if receives := l.cfg.RecvQueue + credit.LinkControlReceives; limits.SendQueue < l.cfg.SendQueue || limits.RecvQueue < receives {
		return fmt.Errorf("the device grants queues of %d and %d work requests: the link has %d and %d",
			limits.SendQueue, limits.RecvQueue, l.cfg.SendQueue, receives)
	}
	return ep.PostRecv(l.cfg.RecvQueue + credit.LinkControlReceives)
}

// returned hands an arrival to the link, which may not know yet that its queue pair
// is gone. It says whether the link takes it.
func (l *Link) returned(a arrival) bool {
	l.mu.Lock()
	if a.request.Attempt <= l.path.attempt {
		l.mu.Unlock()
		return false // another has been made meanwhile
	}
	l.path.attempt = a.request.Attempt
	l.fail(&lostError{syscall.ECONNRESET, errReturned})
	l.mu.Unlock()
	late := time.NewTimer(drainTime)
	defer late.Stop()
	select {
	case l.path.arrivals <- a:
		return true
	case <-l.gone:
	case <-late.C:
	}
	return false
}

var errReturned = errors.New("the peer has lost the queue pair")

// takeUp answers an arrival and goes on with it.
func (l *Link) takeUp(ctx context.Context, a arrival) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	if err := l.openAgain(a.ep); err != nil {
		_ = a.ep.Reject(wire.Reject{Busy: true, Reason: err.Error()}.Append(nil))
		return err
	}
	answer := l.resumption(wire.ResumeAnswer)
	answer.Attempt = a.request.Attempt
	if err := a.ep.Accept(ctx, answer.Append(nil, l.path.own.Secret)); err != nil {
		return err
	}
	return l.move(ctx, a.ep, a.request.Received)
}

// move has the link go on over another queue pair, of which the peer's says what it
// has received. If it fails the endpoint is its caller's again.
func (l *Link) move(ctx context.Context, ep fabric.Endpoint, received wire.Header) error {
	x, err := l.moveMemory(ep)
	if err == nil {
		err = x.run(ctx, ep)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		err = l.resume(ep, received, x)
	}
	if err != nil {
		_ = ep.Disconnect()
		l.leave(ep)
	}
	return err
}

// registered is all memory of the link, and how much of it, from the first on, is the
// peer's to write to. Called with mu held.
func (l *Link) registered() (all []fabric.Memory, rings int) {
	for _, s := range l.rings.slabs {
		all = append(all, s.memory)
	}
	rings = len(all)
	for b := range l.send.buffers {
		all = append(all, b.memory)
	}
	return append(all, l.send.staging.memory), rings
}

// leave takes from an endpoint what it has of the link's memory. Called with mu held.
func (l *Link) leave(ep fabric.Endpoint) {
	all, _ := l.registered()
	for _, m := range all {
		_ = ep.(fabric.Mover).Leave(m) // a device that is gone has it no more
	}
	l.path.homeless = true
}

// moveMemory has the link's memory go over to another endpoint, of which the peer is
// to be told.
func (l *Link) moveMemory(ep fabric.Endpoint) (*keyExchange, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stage != seeking {
		return nil, errGone
	}
	if !l.path.homeless {
		l.leave(l.ep)
	}
	var regions wire.Regions
	all, rings := l.registered()
	for i, m := range all {
		if err := ep.(fabric.Mover).Adopt(m); err != nil {
			return nil, err
		}
		if i < rings {
			regions = append(regions, wire.Region{Addr: m.Addr(), Size: uint32(len(m.Bytes())), Key: m.RKey()})
		}
	}
	regions.Sort()
	return &keyExchange{
		own:    regions,
		first:  l.send.slots.Next(),
		memory: l.send.staging.memory,
		buffer: l.send.credits.buffers[:0:wire.MessageSize], // nothing else is sent meanwhile
	}, nil
}

// maxRegions bounds what a peer may tell of.
const maxRegions = 1 << 16

// keyExchange tells the peer of this side's memory, and takes note of the peer's. Each
// SEND but the first answers one of the peer's, so that there is a receive for it, and
// the buffer is free.
type keyExchange struct {
	own, peer wire.Regions
	first     uint64 // number of the first work request
	sent      int
	completed int // of those; the last may complete when the link is at work again
	memory    fabric.Memory
	buffer    []byte
}

func (x *keyExchange) run(ctx context.Context, ep fabric.Endpoint) error {
	stop := context.AfterFunc(ctx, ep.Wake)
	defer stop()
	untold := x.own
	for more := true; more || len(untold) > 0; {
		n := min(len(untold), wire.MaxRegions)
		b := wire.Keys{More: len(untold) > n, Regions: untold[:n]}.Append(x.buffer)
		untold = untold[n:]
		wr := fabric.WorkRequest{ID: x.first + uint64(x.sent), Op: fabric.Send, Signaled: true, Data: b, Memory: x.memory}
		if err := ep.PostSend([]fabric.WorkRequest{wr}); err != nil {
			return err
		}
		x.sent++
		keys, err := x.await(ctx, ep)
		if err != nil {
			return err
		}
		if x.peer = append(x.peer, keys.Regions...); len(x.peer) > maxRegions {
			return fmt.Errorf("the peer tells of more than %d regions of memory", maxRegions)
		}
		more = keys.More
	}
	x.peer.Sort()
	return nil
}

// await waits for a SEND of the peer's. What comes behind the last is not for here.
func (x *keyExchange) await(ctx context.Context, ep fabric.Endpoint) (keys wire.Keys, err error) {
	var c [1]fabric.Completion
	for {
		if err := ep.Arm(); err != nil {
			return keys, err
		}
		n, err := ep.Poll(c[:])
		if err == nil && n == 0 {
			if err = ctx.Err(); err == nil {
				if err = ep.Wait(); errors.Is(err, fabric.ErrPortDown) {
					err = nil
				}
			}
		}
		switch {
		case err != nil:
			return keys, err
		case n == 0:
		case c[0].Status != fabric.OK:
			return keys, failed(&c[0])
		case !c[0].Recv:
			x.completed++
		case c[0].Op != fabric.Send:
			return keys, errors.New("another message than the peer's keys")
		default:
			if keys, err = wire.DecodeKeys(c[0].Data); err == nil {
				err = ep.PostRecv(1)
			}
			return keys, err
		}
	}
}

// resume sets the link to work on another queue pair. Called with mu held, which it
// may release to send.
func (l *Link) resume(ep fabric.Endpoint, received wire.Header, x *keyExchange) error {
	if l.stage != seeking {
		return errGone
	}
	if err := l.ledger.Resume(credit.Totals{Data: received.Data, Records: received.Records}); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	l.strike()
	if l.lostBytes() {
		return fmt.Errorf("%w: what its device had taken is lost with it", errGone)
	}
	l.sendAgain(x)
	before := l.ep
	l.ep = ep
	l.path.moves++
	l.stage, l.cause, l.final = up, nil, false
	l.cut, l.abandoned, l.peerGone = false, false, false
	l.path.homeless = false
	l.receive.posted, l.receive.spent, l.receive.flushing = l.cfg.RecvQueue+credit.LinkControlReceives, 0, false
	l.watch.armed, l.send.called = false, false
	l.path.stop()
	before.Wake() // the engine, to close it
	for s := range l.everyStream() {
		s.wake()
	}
	l.watchNow()
	l.pollAndSend()
	return nil
}
