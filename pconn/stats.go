package pconn

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Stats counts what a Conn has done.
type Stats struct {
	// Sent are datagrams that have left, and Received those that were read.
	Sent, Received           uint64
	BytesSent, BytesReceived uint64

	// Missed are datagrams to this end that have not arrived, most likely because
	// they were not read in time: the sequence numbers of those that follow them show
	// it. What nothing has followed yet does not show.
	Missed uint64

	// Refused are datagrams that their receiver had no room for, where the network
	// tells, and so they are among what the receiver has Missed: over shm all of them but
	// those to groups, over rdma those that are longer than the MTU of the receiver's port
	// allows. They are also those whose receiver is there and has not let this end send:
	// it does not want to hear from it, or has had no room or no memory for it for five
	// seconds. Of these the receiver knows nothing.
	Refused uint64

	// Unreachable are datagrams to an address at which nobody was found, and Dropped
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

// Stats returns what c has done. It may be called after Close, too.
func (c *Conn) Stats() Stats {
	n := &c.counters
	return Stats{
		Sent: n.sent.Load(), Received: n.received.Load(),
		BytesSent: n.bytesSent.Load(), BytesReceived: n.bytesReceived.Load(),
		Missed: n.missed.Load(), Refused: n.refused.Load(),
		Unreachable: n.unreachable.Load(), Dropped: n.dropped.Load(), Foreign: n.foreign.Load(),
	}
}

// all are the Conns of this process that are open, and what those have done that were
// closed, by network.
var all = struct {
	sync.Mutex
	open map[*Conn]struct{}
	past map[string]Stats
}{open: make(map[*Conn]struct{}), past: make(map[string]Stats)}

// Totals returns what all Conns of this process have done, closed ones included, by
// network. No number ever falls.
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

// delist is called when c counts nothing any more.
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
