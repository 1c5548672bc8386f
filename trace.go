package ringnet

// Trace: which functions of a program are called when something happens.

import (
	"net"
	"time"
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
