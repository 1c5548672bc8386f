package ringnet

// The listener's side of a handshake, from the request until a connection waits for Accept.

import (
	"fmt"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/wire"
)

// places counts the connections that Accept has not returned and the links that they came
// on, and bounds both. Guarded by Listener.mu.
type places struct {
	connections, maxConnections int // in their handshake or waiting for Accept
	links, maxLinks             int // of which Accept has returned no connection
	forPeers, maxForPeers       int // bytes that this side makes for the dialers of those links
}

// takeLink takes a place for a link and one for its first connection, or neither.
func (p *places) takeLink(forPeer int) bool {
	if forPeer > p.maxForPeers-p.forPeers || p.links == p.maxLinks || !p.takeConnection() {
		return false
	}
	p.links++
	p.forPeers += forPeer
	return true
}

// free is for how many links of such dialers there are places.
func (p *places) free(forPeer int) int {
	return min(p.maxLinks-p.links, p.maxConnections-p.connections, (p.maxForPeers-p.forPeers)/max(forPeer, 1))
}

func (p *places) leaveLink(forPeer int) {
	p.links--
	p.forPeers -= forPeer
}

// takeConnection takes a place for a connection, if there is one.
func (p *places) takeConnection() bool {
	if p.connections == p.maxConnections {
		return false
	}
	p.connections++
	return true
}

func (p *places) leaveConnection() { p.connections-- }

// memoryForPeer returns how many bytes this side makes for the dialer if it accepts.
func memoryForPeer(ep fabric.Endpoint) int {
	if n, ok := ep.(fabric.Neighbor); ok {
		return n.MemoryForPeer()
	}
	return 0
}

// begin takes a place for a link and its first connection, or returns what to tell the
// dialer.
func (l *Listener) begin(from source, forPeer int) (*incoming, wire.Reject) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, wire.Full // the dialer asks again, and then finds no listener
	case forPeer > l.places.maxForPeers:
		l.countFailed(ReasonRefused)
		return nil, wire.Reject{Reason: fmt.Sprintf("queues of %d bytes are more than the listener's PendingMemory", forPeer)}
	case l.handshakes.keptFrom(from, l.places.free(forPeer)), !l.places.takeLink(forPeer):
		l.handshakes.wait(from)
		l.countFailed(ReasonFull)
		return nil, wire.Full
	}
	l.ended.Add(1)
	return &incoming{listener: l, forPeer: forPeer, handshake: l.handshakes.begin(l.ctx, from)}, wire.Reject{}
}

// incoming is a link that a peer dials. It implements link.Acceptor for the connections that
// begin on the link.
type incoming struct {
	listener  *Listener
	handshake *handshake
	forPeer   int // bytes that this side makes for the dialer

	settled bool // its first connection gives the link's place back; guarded by Listener.mu
}

// handshake answers a request for a link, and has its first connection wait for Accept.
func (l *Listener) handshake(ep fabric.Endpoint, in *incoming) {
	defer l.ended.Done()
	cfg := l.link
	cfg.Acceptor = in
	made, s, err := l.arrivals.accept(in.handshake.ctx, ep, cfg)
	if err == nil {
		l.trace.made(made)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handshakes.end(in.handshake)
	if err == nil {
		in.enqueue(s)
		return
	}
	l.places.leaveConnection()
	if !l.closed {
		l.countFailed(handshakeCode(err))
	}
	if !in.settled { // else a connection has begun on the link, which was not proven
		l.places.leaveLink(in.forPeer)
	}
}

// enqueue makes a connection that has its place wait for Accept. Called with Listener.mu
// held.
func (in *incoming) enqueue(s *link.Stream) {
	l := in.listener
	c := l.trace.newConn(s, false)
	first := !in.settled // the link's place is given back with the connection's
	in.settled = true
	l.arrivals.queue.Push(auto.Accepted{Conn: c, Taken: func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.places.leaveConnection()
		if first {
			l.places.leaveLink(in.forPeer)
		}
	}})
}

// Offer implements [link.Acceptor]: the dialer begins another connection on the link.
func (in *incoming) Offer(s *link.Stream) wire.RefuseReason {
	l := in.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return wire.RefusedClosed
	}
	if !l.places.takeConnection() {
		l.countFailed(ReasonFull)
		return wire.RefusedBacklog
	}
	in.enqueue(s)
	return 0
}

// Short implements [link.Acceptor]: there is no memory for another connection.
func (in *incoming) Short(err error) { in.listener.countFailed(codeOf(err)) }

// countFailed counts a connection that a dialer has asked for and not got.
func (l *Listener) countFailed(code ReasonCode) { l.stats.failed(l.addr.Network(), code) }

// handshakeCode returns why a handshake has failed. This side only cancels one whose peer
// did not confirm in time.
func handshakeCode(err error) ReasonCode {
	if code := codeOf(err); code != ReasonCanceled {
		return code
	}
	return ReasonSilent
}
