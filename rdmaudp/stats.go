package rdmaudp

import "sync/atomic"

// Stats counts what a [PacketConn] has done since it was made.
type Stats struct {
	// Sent and Received count datagrams that have left, and that were read; BytesSent and
	// BytesReceived the bytes of those, without headers, with those that a Read had no room
	// for.
	Sent, Received           uint64
	BytesSent, BytesReceived uint64

	// Missed counts datagrams to this end that have not arrived, most often because they
	// were not read in time. The sequence number of the next datagram from the same sender
	// shows how many are missing; until it arrives they are not counted.
	Missed uint64

	// Refused counts datagrams that are longer than the MTU of the receiver's port allows,
	// which the receiver counts as Missed, and those whose receiver did not admit this end as
	// a sender: it had no room or no memory for it within five seconds.
	Refused uint64

	// Unreachable counts datagrams to an address at which no receiver was found.
	Unreachable uint64

	// Dropped counts datagrams for which there was no room while their receiver was being
	// looked for.
	Dropped uint64

	// Foreign counts datagrams that were not of this protocol, or not from the address
	// dialed.
	Foreign uint64
}

type counters struct {
	sent, received, bytesSent, bytesReceived       atomic.Uint64
	missed, refused, unreachable, dropped, foreign atomic.Uint64
}

// Stats returns c's counts. It may be called after Close, too.
func (c *PacketConn) Stats() Stats {
	n := &c.counters
	return Stats{
		Sent: n.sent.Load(), Received: n.received.Load(),
		BytesSent: n.bytesSent.Load(), BytesReceived: n.bytesReceived.Load(),
		Missed: n.missed.Load(), Refused: n.refused.Load(),
		Unreachable: n.unreachable.Load(), Dropped: n.dropped.Load(), Foreign: n.foreign.Load(),
	}
}
