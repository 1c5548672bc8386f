package ringnet

// Links that are being made, and what arrives on them before they are accepted.

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/wire"
)

// memoryForPeer is how many bytes this side makes for the other if it accepts.
func memoryForPeer(ep fabric.Endpoint) int {
	if e, ok := ep.(interface{ MemoryForPeer() int }); ok {
		return e.MemoryForPeer()
	}
	return 0
}

// begin takes a place for a link and its first connection, or says why there is
// none.
func (l *Listener) begin(forPeer int) (*incoming, wire.Reject) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, wire.Full // the next dial finds nobody
	case forPeer > l.peersMax:
		l.countFailed(ReasonRefused)
		return nil, wire.Reject{Reason: fmt.Sprintf("queues of %d bytes are more than the listener's PendingMemory", forPeer)}
	case forPeer > l.peersMax-l.forPeers || !l.takePlace():
		l.handshakes.endOverdue()
		l.endEmpty()
		l.countFailed(ReasonFull)
		return nil, wire.Full
	}
	l.forPeers += forPeer
	l.ended.Add(1)
	return &incoming{listener: l, forPeer: forPeer, handshake: l.handshakes.begin(l.ctx)}, wire.Reject{}
}

// takePlace takes a place in pending and one in backlog, if there are both.
// Called with mu held.
func (l *Listener) takePlace() bool {
	select {
	case l.pending <- struct{}{}:
	default:
		return false
	}
	select {
	case l.backlog <- struct{}{}:
		return true
	default:
		<-l.pending
		return false
	}
}

// end gives the place of a link back. Called with mu held.
func (l *Listener) end(in *incoming) {
	l.forPeers -= in.forPeer
	<-l.pending
}

// incoming is a link that a peer dials, and takes the connections on it.
type incoming struct {
	listener  *Listener
	handshake *handshake
	forPeer   int  // bytes that it takes for the dialer
	settled   bool // a connection has its place in pending, or nobody; guarded by Listener.mu
}

// handshake makes a link of a request, and its first connection if it has one.
func (l *Listener) handshake(ep fabric.Endpoint, in *incoming) {
	defer l.ended.Done()
	cfg := l.link
	cfg.Acceptor = in
	made, s, err := l.claims.accept(in.handshake.ctx, ep, cfg)
	if err == nil {
		l.trace.made(made)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handshakes.end(in.handshake)
	switch {
	case err != nil:
		<-l.backlog
		if !l.closed {
			l.countFailed(handshakeCode(err))
		}
		if !in.settled { // by a connection on a link that was not proven
			in.settled = true
			l.end(in)
		}
	case s != nil:
		in.enqueue(s)
	default:
		<-l.backlog
		in.await(made)
	}
}

// await has a link without a connection wait for one, unless one has begun
// meanwhile. Called with Listener.mu held. It does not call the link, whose lock
// is held when it calls Offer.
func (in *incoming) await(made *link.Link) {
	l := in.listener
	if in.settled {
		return
	}
	l.empty[in] = made
	go made.OnEnd(in.over)
	if l.closed {
		l.endEmpty()
	}
}

// over gives the place of a link back that has ended without a connection.
func (in *incoming) over() {
	l := in.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if !in.settled {
		in.settled = true
		delete(l.empty, in)
		l.end(in)
	}
}

// endEmpty has the links leave that have brought no connection. Called with mu
// held.
func (l *Listener) endEmpty() {
	for in, made := range l.empty {
		delete(l.empty, in)
		go made.Leave()
	}
}

// enqueue has a connection, for which backlog has a place, wait for Accept. Called
// with Listener.mu held.
func (in *incoming) enqueue(s *link.Stream) {
	l := in.listener
	w := waiting{conn: l.trace.newConn(l.addr.Network(), s, l.config, false)}
	if !in.settled {
		in.settled = true
		delete(l.empty, in)
		w.first = in
	}
	l.accepted <- w // has room for as many as the backlog
}

// Offer implements [link.Acceptor] for the connections that the dialer begins on
// the link.
func (in *incoming) Offer(s *link.Stream) wire.RefuseReason {
	l := in.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return wire.RefusedClosed
	}
	select {
	case l.backlog <- struct{}{}:
		in.enqueue(s)
		return 0
	default:
		l.countFailed(ReasonFull)
		return wire.RefusedBacklog
	}
}

// Short implements [link.Acceptor].
func (in *incoming) Short(err error) { in.listener.countFailed(codeOf(err)) }

// countFailed counts what a dialer has asked for in vain.
func (l *Listener) countFailed(code ReasonCode) { l.stats.failed(l.addr.Network(), code) }

// handshakeCode is why a handshake has failed. One that was ended had a peer that did
// not confirm in time.
func handshakeCode(err error) ReasonCode {
	if code := codeOf(err); code != ReasonCanceled {
		return code
	}
	return ReasonSilent
}

// handshakes are those that are under way, the oldest first.
type handshakes []*handshake

type handshake struct {
	began  time.Time
	ctx    context.Context
	cancel context.CancelFunc
}

func (hs *handshakes) begin(ctx context.Context) *handshake {
	h := &handshake{began: time.Now()}
	h.ctx, h.cancel = context.WithCancel(ctx)
	*hs = append(*hs, h)
	return h
}

func (hs *handshakes) end(h *handshake) {
	h.cancel()
	i := slices.Index(*hs, h)
	*hs = slices.Delete(*hs, i, i+1)
}

// endOverdue ends the handshakes whose peers have not confirmed for too long, in
// favour of others: whoever has found no room asks again in a while.
func (hs *handshakes) endOverdue() {
	for _, h := range *hs {
		if time.Since(h.began) < confirmWithin {
			return
		}
		h.cancel()
	}
}
