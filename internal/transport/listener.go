package transport

// A listener on one network: each request for a link is answered in the background, and the
// connections that begin on the link wait for Accept.

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/wire"
)

// Answerer answers the requests that come to a Listener. The streams of the links that it accepts
// wait in the Listener's Queue.
type Answerer interface {
	// AcceptLink makes the link that a request asks for, and its first stream.
	AcceptLink(context.Context, fabric.Endpoint, link.Setup) (*link.Link, *link.Stream, error)

	// ListenerFailed is called when l answers no more requests, though it was not closed.
	ListenerFailed(l *Listener, err error)
}

// Listener accepts connections on one network. Handshakes run in the background.
type Listener struct {
	*Queue
	network  *Network
	listener fabric.Listener
	Setup    link.Setup // of the links
	events   Events
	answerer Answerer
	ctx      context.Context // of the handshakes
	cancel   context.CancelFunc

	mu         sync.Mutex // guards what follows
	refusing   bool
	places     places
	handshakes handshakes
	ended      sync.WaitGroup // counts handshakes; added to only while not refusing
}

// ErrUnmet is why a link is not proven at the listener.
var ErrUnmet = errors.New("the dialer's TCP connection did not arrive at this listener")

// Refuse refuses a request for a link whose proof cannot come.
func Refuse(ep fabric.Endpoint, why wire.Reject) (*link.Link, *link.Stream, error) {
	_ = ep.Reject(why.Append(nil))
	_ = ep.Close()
	return nil, nil, ErrUnmet
}

// Network returns the name of the network.
func (l *Listener) Network() string { return l.network.Name }

// Addr returns the address that l listens at, with the port in use.
func (l *Listener) Addr() netip.AddrPort { return l.listener.Addr() }

// Taken returns how many of the places are taken, of connections and of links. For tests.
func (l *Listener) Taken() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.places.connections + l.places.links + l.places.forPeers + len(l.handshakes.all)
}

// Close stops listening, and resets the connections that wait.
func (l *Listener) Close() error {
	l.Queue.Close()
	err := l.Stop()
	l.Reset()
	return err
}

// Refuse accepts no connection any more, also on links that are up, whose peers it tells so. Requests
// for links are to be made again, and find no listener then, or another.
func (l *Listener) Refuse() {
	l.mu.Lock()
	l.refusing = true
	l.mu.Unlock()
	link.Retire(func(a link.Acceptor) bool {
		in, ok := a.(*incoming)
		return ok && in.listener == l
	})
}

// Stop stops listening, and leaves the queue as it is. When it returns, nothing comes to the
// queue any more.
func (l *Listener) Stop() error {
	l.Refuse()
	l.cancel()
	err := l.listener.Close()
	l.ended.Wait()
	l.Refuse() // on the links that were made meanwhile
	return err
}

// Serve answers connection requests in the background until the fabric's listener fails, which it also does
// when it is closed.
func (l *Listener) Serve() {
	go func() {
		for {
			ep, err := l.listener.Accept()
			if err != nil {
				l.answerer.ListenerFailed(l, listenerError(err))
				return
			}
			in, refusal := l.begin(sourceOf(ep), memoryForPeer(ep))
			if in == nil {
				_ = ep.Reject(refusal.Append(nil))
				_ = ep.Close()
				continue
			}
			go l.handshake(ep, in)
		}
	}()
}

// listenerError adds the errno that connections give to a fabric's error about the end of
// its listener.
func listenerError(err error) error {
	if errors.Is(err, fabric.ErrDeviceRemoved) {
		return fmt.Errorf("%w (%w)", syscall.ENETDOWN, err)
	}
	return err
}

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
	case l.refusing:
		return nil, wire.Full // the dialer asks again, and then finds no listener
	case forPeer > l.places.maxForPeers:
		l.failed(new(fabric.RefusedError))
		return nil, wire.Reject{Reason: fmt.Sprintf("queues of %d bytes are more than the listener's PendingMemory", forPeer)}
	case l.handshakes.keptFrom(from, l.places.free(forPeer)), !l.places.takeLink(forPeer):
		l.handshakes.wait(from)
		l.failed(errFull)
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
	setup := l.Setup
	setup.Acceptor = in
	made, s, err := l.answerer.AcceptLink(in.handshake.ctx, ep, setup)
	if err == nil {
		l.events.LinkMade(made)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handshakes.end(in.handshake)
	if err == nil {
		in.enqueue(s)
		return
	}
	l.places.leaveConnection()
	if !l.refusing {
		l.failed(err)
	}
	if !in.settled { // else a connection has begun on the link, which was not proven
		l.places.leaveLink(in.forPeer)
	}
}

// enqueue makes a connection that has its place wait for Accept. Called with Listener.mu
// held.
func (in *incoming) enqueue(s *link.Stream) {
	l := in.listener
	c := l.events.Opened(s)
	first := !in.settled // the link's place is given back with the connection's
	in.settled = true
	l.Push(Accepted{Conn: c, Taken: func() {
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
	if l.refusing {
		return wire.RefusedClosed
	}
	if !l.places.takeConnection() {
		l.failed(errFull)
		return wire.RefusedBacklog
	}
	in.enqueue(s)
	return 0
}

// Short implements [link.Acceptor]: there is no memory for another connection.
func (in *incoming) Short(err error) { in.listener.failed(err) }

// errFull is why a dialer finds no place.
var errFull = &fabric.RefusedError{Busy: true}

// failed says why a dialer has not got the connection that it has asked for.
func (l *Listener) failed(why error) { l.events.HandshakeFailed(l.network.Name, why) }
