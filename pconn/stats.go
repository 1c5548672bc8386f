package pconn

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Stats counts the datagrams of a Conn since it was opened.
type Stats struct {
	// Sent are datagrams that have left, and Received those that were read.
	Sent, Received uint64

	// BytesSent and BytesReceived are the bytes of those, without headers. They include
	// bytes that a Read had no room for.
	BytesSent, BytesReceived uint64

	// Missed are datagrams to this end that have not arrived, most likely because they
	// were not read in time. The sequence number of the next datagram from the same sender
	// shows how many are missing; until it arrives they are not counted.
	Missed uint64

	// Refused are datagrams that the receiver had no room for, where the network reports
	// that: over shm all but those to groups, over rdma those that are longer than the MTU
	// of the receiver's port allows. The receiver counts them as Missed. Refused are also
	// datagrams whose receiver did not admit this end as a sender: it does not trust it, or
	// had no room or no memory for it within five seconds. The receiver does not count
	// these.
	Refused uint64

	// Unreachable are datagrams to an address at which no receiver was found, and Dropped
	// those for which there was no room while their receiver was being looked for.
	Unreachable, Dropped uint64

	// Foreign are datagrams that were not ringnet's, or, at a Conn that was dialed, not
	// from the address that it was dialed to.
	Foreign uint64
}

type counters struct {
	sent, received, bytesSent, bytesReceived       atomic.Uint64
	missed, refused, unreachable, dropped, foreign atomic.Uint64
}

// Stats returns c's counts. It may be called after Close, too.
func (c *Conn) Stats() Stats {
	n := &c.counters
	return Stats{
		Sent: n.sent.Load(), Received: n.received.Load(),
		BytesSent: n.bytesSent.Load(), BytesReceived: n.bytesReceived.Load(),
		Missed: n.missed.Load(), Refused: n.refused.Load(),
		Unreachable: n.unreachable.Load(), Dropped: n.dropped.Load(), Foreign: n.foreign.Load(),
	}
}

// all has the open Conns of this process, and the sums of the counts of closed ones, by
// network.
var all = struct {
	sync.Mutex
	open map[*Conn]struct{}
	past map[string]Stats
}{open: make(map[*Conn]struct{}), past: make(map[string]Stats)}

// Totals returns the sums of the counts of all Conns of this process, closed ones included,
// by network. No number ever falls.
func Totals() map[string]Stats {
	all.Lock()
	defer all.Unlock()
	totals := maps.Clone(all.past)
	for c := range all.open {
		totals[c.network] = totals[c.network].plus(c.Stats())
	}
	return totals
}

func (c *Conn) enlist() {
	all.Lock()
	defer all.Unlock()
	all.open[c] = struct{}{}
}

// delist adds c's counts to those of closed Conns. Nothing may count for c after that.
func (c *Conn) delist() {
	all.Lock()
	defer all.Unlock()
	delete(all.open, c)
	all.past[c.network] = all.past[c.network].plus(c.Stats())
}

func (s Stats) plus(o Stats) Stats {
	return Stats{
		Sent: s.Sent + o.Sent, Received: s.Received + o.Received,
		BytesSent: s.BytesSent + o.BytesSent, BytesReceived: s.BytesReceived + o.BytesReceived,
		Missed: s.Missed + o.Missed, Refused: s.Refused + o.Refused,
		Unreachable: s.Unreachable + o.Unreachable, Dropped: s.Dropped + o.Dropped, Foreign: s.Foreign + o.Foreign,
	}
}
