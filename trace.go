package ringnet

import (
	"net"
	"time"

	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// Trace is functions that are called when something happens to dials, connections and
// links; nil ones are not. It is set in a [Dialer] or a [ListenConfig], and for several
// of them it may be the same. It must not change once it is in use.
//
// The functions are called in the goroutine that the event happens in, by several at
// once, with no lock held: what they take, a dial, Accept or Close takes longer. They
// may call Stats, [Totals], [Links] and [Memory]. They must not dial, accept or close,
// nor wait for a goroutine that does.
type Trace struct {
	// Dialed is called when a dial has ended, before it returns.
	Dialed func(DialEvent)

	// Accepted is called before Accept returns a connection.
	Accepted func(AcceptEvent)

	// Closed is called when a connection was closed, before Close returns; and in a
	// goroutine of its own when one was dropped without Close, and the garbage
	// collector has found it. There is one for each connection, also for those that
	// Accept never returned or that a dial did not want any more.
	Closed func(CloseEvent)

	// LinkUp is called when a link was made: by a dial, in its goroutine or, for a
	// link beyond the first, in one of its own; or by a listener, in a goroutine of its
	// own. Connections share links, whatever their Dialers' Traces: a link's events
	// go to the Trace of the Dialer whose dial has made it.
	LinkUp func(LinkInfo)

	// LinkMoved is called after LinkUp, in a goroutine of its own, when a link has lost
	// its queue pair and goes on over another, by the Path that LinkInfo has now: with how
	// long connections have waited for that since the loss was found, and its cause.
	LinkMoved func(l LinkInfo, waited time.Duration, cause error)

	// LinkDown is called after LinkUp, in a goroutine of its own, when a link
	// carries nothing any more: with the cause, of which all connections that were left
	// on it fail, or with nil if none was and it was not needed any more.
	LinkDown func(LinkInfo, error)
}

// DialEvent is how a dial has ended.
type DialEvent struct {
	Network, Address string // as they were given
	Took             time.Duration

	// Carrier is the network that carries the connection, with its ends; they are ""
	// and nil if the dial has failed.
	Carrier       string
	Local, Remote net.Addr

	PassedOver []Reason // why no better network does, on "auto"
	Err        error    // what the dial returns
}

// AcceptEvent is a connection that Accept returns.
type AcceptEvent struct {
	Carrier       string // the network that carries it
	Local, Remote net.Addr
}

// CloseEvent is how a connection has ended.
type CloseEvent struct {
	Carrier       string // the network that has carried it
	Local, Remote net.Addr
	Dialed        bool // by this process
	Age           time.Duration
	Stats         Stats
	Err           error // what Close has returned
	Dropped       bool  // the garbage collector has found it
}

func (t *Trace) dialed(network, address string, took time.Duration, c net.Conn, err error) {
	if t == nil || t.Dialed == nil {
		return
	}
	e := DialEvent{Network: network, Address: address, Took: took, PassedOver: passedOver(c, err), Err: err}
	if err == nil {
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

// newConn makes a connection of a stream.
func (t *Trace) newConn(network string, s *link.Stream, cfg *Config, dialed bool) *Conn {
	return rconn.New(network, s, cfg, t.opened(CloseEvent{
		Carrier: network,
		Local:   rconn.NewAddr(network, s.LocalAddr()),
		Remote:  rconn.NewAddr(network, s.RemoteAddr()),
		Dialed:  dialed,
	}))
}

// opened counts a connection, and returns what to call when it has ended. e has what is
// known by then.
func (t *Trace) opened(e CloseEvent) func(rconn.End) {
	totals.count(e.Carrier, func(t *NetworkTotals) { t.Opened++ })
	began := time.Now()
	return func(end rconn.End) {
		totals.count(e.Carrier, func(t *NetworkTotals) { t.Closed++ })
		if t != nil && t.Closed != nil {
			e.Age = time.Since(began)
			e.Stats, e.Err, e.Dropped = end.Stats, end.Err, end.Dropped
			t.Closed(e)
		}
	}
}

// made counts a link, and has told what becomes of it.
func (t *Trace) made(l *link.Link) {
	network := l.Info().Network
	totals.count(network, func(t *NetworkTotals) { t.LinksMade++ })
	if t != nil && t.LinkUp != nil {
		t.LinkUp(rconn.NewLinkInfo(l.Info()))
	}
	if t != nil && t.LinkMoved != nil {
		l.OnMove(func(i link.Info, waited time.Duration, cause error) {
			t.LinkMoved(rconn.NewLinkInfo(i), waited, cause)
		})
	}
	l.OnDown(func(cause error) {
		if cause != nil {
			totals.count(network, func(t *NetworkTotals) { increment(&t.LinksLost, codeOf(cause)) })
		}
		if t != nil && t.LinkDown != nil {
			t.LinkDown(rconn.NewLinkInfo(l.Info()), cause)
		}
	})
}
