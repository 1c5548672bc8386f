package ringnet

import (
	"net"
	"time"
	"weak"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// Trace has functions that this package calls when something happens to dials, connections
// and links. Each may be nil. A Trace is set in a [Dialer] or a [ListenConfig], several of which
// may have the same one. It must not change once it is in use.
//
// Several goroutines may call a function at once. Each calls it where the event happens, with
// no lock held, so a slow function makes a dial, an Accept or a Close slower. The functions may
// call Stats, [Totals], [Links] and [Memory]. They must not dial, accept or close, nor wait for
// a goroutine that does.
type Trace struct {
	// Dialed is called when a dial has ended, before it returns, also for one that is left to
	// package net (see [Dialer].ForTCP).
	Dialed func(DialEvent)

	// Accepted is called before Accept returns a connection.
	Accepted func(AcceptEvent)

	// Closed is called once for each connection that has ended, also for those that Accept
	// never returned and for those that a dial has given up: before Close returns, or, for
	// a connection that the garbage collector found not closed, in a goroutine of its own.
	Closed func(CloseEvent)

	// LinkUp is called when a link was made: by a dial in its own goroutine, by a listener in another.
	// Connections of several Dialers share links: the events of a link go to the Trace of
	// the Dialer whose dial has made it.
	LinkUp func(LinkInfo)

	// LinkMoved is called, after LinkUp, when a link has lost its queue pair and goes on
	// over another, in a goroutine of its own. LinkInfo has the new Path. waited is how long
	// its connections have waited since the loss was noticed, and cause is why it was lost.
	LinkMoved func(l LinkInfo, waited time.Duration, cause error)

	// LinkDown is called, after LinkUp, when a link has ended, in a goroutine of its own.
	// The error is why, and all connections that were left on the link fail with it; it is
	// nil if the link carried no connection and was not needed any more.
	LinkDown func(LinkInfo, error)
}

// DialEvent describes a dial that has ended.
type DialEvent struct {
	Network, Address string // what the caller has given
	Took             time.Duration

	// Carrier is the network that carries the connection, Local and Remote are its
	// addresses: each an [Addr], or over TCP a *net.TCPAddr. They are "" and nil if the dial
	// has failed.
	Carrier       string
	Local, Remote net.Addr

	PassedOver []Reason // on "auto": why no better network carries the connection
	Err        error    // the error that the dial returns
}

// AcceptEvent describes a connection that Accept returns.
type AcceptEvent struct {
	Carrier       string   // the network that carries it
	Local, Remote net.Addr // as in DialEvent
}

// CloseEvent describes a connection that has ended.
type CloseEvent struct {
	Carrier       string        // the network that carried it
	Local, Remote net.Addr      // as in DialEvent
	Dialed        bool          // whether this process has dialed it
	Age           time.Duration // since it began
	Stats         Stats
	Err           error // the error that Close has returned
	Dropped       bool  // the program did not close it, and the garbage collector found it
}

func (t *Trace) dialed(network, address string, took time.Duration, c net.Conn, err error) {
	if t == nil || t.Dialed == nil {
		return
	}
	e := DialEvent{Network: network, Address: address, Took: took, PassedOver: passedOver(c, err), Err: err}
	if err == nil {
		if a, ok := c.(*AutoConn); ok {
			c = a.stream
		}
		e.Local, e.Remote = c.LocalAddr(), c.RemoteAddr()
		e.Carrier = e.Local.Network()
	}
	t.Dialed(e)
}

func (t *Trace) accepted(c net.Conn) {
	if t != nil && t.Accepted != nil {
		t.Accepted(AcceptEvent{c.LocalAddr().Network(), c.LocalAddr(), c.RemoteAddr()})
	}
}

// newConn makes a connection of a stream, and counts it.
func (t *Trace) newConn(s *link.Stream, dialed bool) *Conn {
	network := s.Link().Network()
	c := t.opened(CloseEvent{
		Carrier: network,
		Local:   rconn.NewAddr(network, s.LocalAddr()),
		Remote:  rconn.NewAddr(network, s.RemoteAddr()),
		Dialed:  dialed,
	})
	c.stream = s
	conn := rconn.New(s, c.ended)
	c.enter(keyOf(conn))
	return conn
}

// newTCPConn makes a connection of auto that TCP carries, and counts it.
func (t *Trace) newTCPConn(tcp *net.TCPConn, dialed bool) *auto.TCPConn {
	c := t.opened(CloseEvent{
		Carrier: "tcp",
		Local:   tcp.LocalAddr(),
		Remote:  tcp.RemoteAddr(),
		Dialed:  dialed,
	})
	conn := auto.NewTCPConn(tcp, c.ended)
	c.tcp = weak.Make(conn)
	c.enter(keyOf(conn))
	return conn
}

// opened counts a connection that begins. e has what is known already.
func (t *Trace) opened(e CloseEvent) *connection {
	totals.count(e.Carrier, func(t *NetworkTotals) { t.Opened++ })
	return &connection{CloseEvent: e, trace: t, began: time.Now()}
}

// made counts a link, and reports it, and what becomes of it, to the Trace.
func (t *Trace) made(l *link.Link) {
	network := l.Network()
	totals.count(network, func(t *NetworkTotals) { t.LinksMade++ })
	if t != nil && t.LinkUp != nil {
		t.LinkUp(rconn.LinkInfoOf(l.Info()))
	}
	if t != nil && t.LinkMoved != nil {
		l.OnMove(func(i link.Info, waited time.Duration, cause error) { t.LinkMoved(rconn.LinkInfoOf(i), waited, cause) })
	}
	l.OnDown(func(cause error) {
		if cause != nil {
			totals.count(network, func(t *NetworkTotals) { increment(&t.LinksLost, codeOf(cause)) })
		}
		if t != nil && t.LinkDown != nil {
			t.LinkDown(rconn.LinkInfoOf(l.Info()), cause)
		}
	})
}
