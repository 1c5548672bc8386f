package transport

// How a listener of one network begins to listen.

import (
	"context"
	"net/netip"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hostport"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/netns"
	"github.com/ringnet/ringnet/internal/wire"
)

// ListenConfig says how to listen on one network or another.
type ListenConfig struct {
	Family    hostport.Family
	Namespace netns.Namespace // of the thread that listens
	Config    *link.Config
	Trust     Trust
	Events    Events

	Backlog       int // connections in their handshake or waiting for Accept
	PendingMemory int // bytes, of links of which Accept has returned no connection yet
}

// Listen listens on one network, with a queue of its own.
func (lc *ListenConfig) Listen(n *Network, addr netip.AddrPort) (*Listener, error) {
	q := NewQueue()
	l, err := lc.ListenFor(alone{q}, q, n, addr)
	if err == nil {
		l.Serve()
	}
	return l, err
}

// ListenFor listens on a network. Requests wait until Serve is called; then a answers them, and the
// connections wait in q.
func (lc *ListenConfig) ListenFor(a Answerer, q *Queue, n *Network, addr netip.AddrPort) (*Listener, error) {
	f, err := n.Open(lc.Trust, lc.Config)
	if err != nil {
		return nil, err
	}
	setup, err := n.setup(lc.Config, f, lc.Namespace)
	if err != nil {
		return nil, err
	}
	most := places{
		maxConnections: lc.Backlog,
		maxLinks:       max(1, min(lc.Backlog, lc.PendingMemory/lc.linkMemory())),
		maxForPeers:    lc.PendingMemory,
	}
	fl, err := f.Listen(lc.Family.ListenOn(addr), most.maxLinks)
	if err != nil {
		return nil, err
	}
	l := &Listener{Queue: q, network: n, listener: fl, Setup: setup, events: lc.Events, answerer: a, places: most}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// linkMemory returns the most bytes that this end of a link pins at first. The dialer
// decides whether a link is dedicated, which takes more, so it counts as dedicated.
func (lc *ListenConfig) linkMemory() int {
	var c link.Config
	if lc.Config != nil {
		c = *lc.Config
	}
	c.Dedicated = true
	return c.PinnedMemory()
}

// alone answers the requests at a listener of one network, which cannot prove that TCP leads to it.
type alone struct{ *Queue }

var errNoClaims = wire.Reject{Reason: "the listener does not listen on TCP, so it cannot prove that TCP leads to it"}

func (alone) AcceptLink(ctx context.Context, ep fabric.Endpoint, setup link.Setup) (*link.Link, *link.Stream, error) {
	if wire.ProofPort(ep.Private()) != 0 {
		return Refuse(ep, errNoClaims)
	}
	return link.Accept(ctx, ep, setup)
}

func (a alone) ListenerFailed(_ *Listener, err error) { a.Fail(err) }
