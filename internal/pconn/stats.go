package pconn

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Stats counts the datagrams of a Conn since it was opened. Package ringnet documents each field.
type Stats struct {
	Sent, Received           uint64 // datagrams
	BytesSent, BytesReceived uint64 // of those, without headers
	Missed                   uint64 // have not arrived
	Refused                  uint64 // the receiver had no room, or did not admit this end
	Unreachable              uint64 // no receiver was found
	Dropped                  uint64 // there was no room while the receiver was being looked for
	Foreign                  uint64 // not ringnet's, or not from the address dialed
	ByUDP                    uint64 // of Sent, on auto-udp
}

type counters struct {
	sent, received, bytesSent, bytesReceived       atomic.Uint64
	missed, refused, unreachable, dropped, foreign atomic.Uint64
	byUDP                                          atomic.Uint64
}

// Stats returns c's counts. It may be called after Close, too.
func (c *Conn) Stats() Stats {
	n := &c.counters
	return Stats{
		Sent: n.sent.Load(), Received: n.received.Load(),
		BytesSent: n.bytesSent.Load(), BytesReceived: n.bytesReceived.Load(),
		Missed: n.missed.Load(), Refused: n.refused.Load(),
		Unreachable: n.unreachable.Load(), Dropped: n.dropped.Load(), Foreign: n.foreign.Load(),
		ByUDP: n.byUDP.Load(),
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
		ByUDP: s.ByUDP + o.ByUDP,
	}
}
