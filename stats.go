package ringnet

// What the connections, dials and listeners of this process have done.

import (
	"maps"
	"sync"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// Stats counts what one connection has done: [rconn.Conn.Stats] and [AutoConn.Stats] return it.
type Stats = rconn.Stats

// ListenerStats counts what a listener has done on one network. The numbers only grow.
type ListenerStats struct {
	// Accepted counts connections that Accept has returned.
	Accepted uint64 `metric:"accepts" help:"Connections that Accept has returned, by the network that carries them."`

	// FellBack counts those of Accepted that TCP carries although the listener offered a
	// better network: the dialer could not use it, or does not use ringnet. It is counted
	// on "tcp" alone.
	FellBack uint64 `metric:"accepts_fell_back" of:"tcp" help:"Connections that Accept has returned over TCP although the listener offered a better network."`

	// Failed counts, by the reason, connections that dialers have asked for and not got:
	// the listener had no room (ReasonFull: see Backlog and PendingMemory) or no memory
	// (ReasonMemory, ReasonLockedMemory), the dialer did not confirm (ReasonSilent,
	// ReasonReset), its TCP connection did not come to this listener (ReasonElsewhere), and
	// so on. Most dialers ask again, and each request counts. Connections that end because
	// the listener was closed do not count.
	Failed map[ReasonCode]uint64 `metric:"handshakes_failed" help:"Connections that dialers have asked listeners for in vain, by the code of the reason."`
}

// NetworkTotals counts what this process has done over one network since it started. The
// numbers only grow. Module metrics makes a metric of each field, as its tags say: of all networks that
// carry connections, of those that have links, or of TCP alone.
type NetworkTotals struct {
	// Dialed counts connections that dials have returned, at the network that carries
	// them. DialsFailed counts dials that have failed, at the network that the caller asked
	// for, which may be "auto", by the reason.
	Dialed      uint64                `metric:"dials_succeeded" help:"Dials that have returned a connection, by the network that carries it."`
	DialsFailed map[ReasonCode]uint64 `metric:"dials_failed" help:"Dials that have failed, by the network asked for and the code of the reason."`

	// PassedOver counts, by the reason, dials of "auto" that have not connected over this
	// network, whether they connected over another or failed.
	PassedOver map[ReasonCode]uint64 `metric:"dials_passed_over" help:"Dials of auto that have not connected over a better network than TCP, by that network and the code of the reason."`

	ListenerStats // the sum of all listeners

	// Opened counts connections that have begun, including those that Accept has not
	// returned yet and some that a dial has given up. Closed counts those of them that
	// were closed; the difference is how many are open.
	Opened uint64 `metric:"connections_opened" help:"Connections that have begun."`
	Closed uint64 `metric:"connections_closed" help:"Connections that were closed."`

	// What all connections have carried, with those that are closed. Messages are work
	// requests with data; 0 over TCP. Over TCP a call counts when it returns, and what a
	// program does with the NetConn of an AutoConn does not count.
	BytesSent        uint64 `metric:"sent_bytes" help:"Bytes that connections have sent."`
	BytesReceived    uint64 `metric:"received_bytes" help:"Bytes that connections have received."`
	MessagesSent     uint64 `metric:"sent_messages" of:"links" help:"Work requests with data that connections have sent."`
	MessagesReceived uint64 `metric:"received_messages" of:"links" help:"Work requests with data that connections have received."`

	// LinksMoved counts how often a link has lost its queue pair and gone on over another
	// (see [Config].ResumeTimeout). Each end of a link counts for itself.
	LinksMoved uint64 `metric:"links_moved" of:"links" help:"Times that a link has lost its queue pair and has gone on over another."`

	// LinksMade counts links that were made. LinksLost counts, by the reason, those that
	// have ended for another cause than having nothing more to carry.
	LinksMade uint64                `metric:"links_made" of:"links" help:"Links that were made."`
	LinksLost map[ReasonCode]uint64 `metric:"links_lost" help:"Links that have ended although they were needed, by the code of the reason."`
}

// Totals returns what this process has done over each network since it started. The keys are
// "shm", "rdma" and "tcp"; and "auto" for what concerns none of these. A network that was not used is absent. TCP counts
// connections of "auto" alone. The map is the caller's. For memory see [Memory].
func Totals() map[string]NetworkTotals {
	all := totals.snapshot()
	for network, carried := range link.Totals() {
		t := all[network]
		t.BytesSent, t.BytesReceived = carried.BytesSent, carried.BytesReceived
		t.MessagesSent, t.MessagesReceived = carried.MessagesSent, carried.MessagesReceived
		t.LinksMoved = carried.Moves
		all[network] = t
	}
	sent, received := auto.TCPBytes()
	if t, ok := all["tcp"]; ok {
		t.BytesSent, t.BytesReceived = sent, received
		all["tcp"] = t
	}
	return all
}

// totals are what is counted when it happens.
var totals = processTotals{byNetwork: make(map[string]*NetworkTotals)}

type processTotals struct {
	mu        sync.Mutex
	byNetwork map[string]*NetworkTotals
}

// count calls add, with mu held, to count something on a network.
func (p *processTotals) count(network string, add func(t *NetworkTotals)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.byNetwork[network]
	if t == nil {
		t = new(NetworkTotals)
		p.byNetwork[network] = t
	}
	add(t)
}

func (p *processTotals) snapshot() map[string]NetworkTotals {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]NetworkTotals, len(p.byNetwork))
	for network, t := range p.byNetwork {
		c := *t
		c.DialsFailed, c.PassedOver, c.LinksLost = maps.Clone(c.DialsFailed), maps.Clone(c.PassedOver), maps.Clone(c.LinksLost)
		c.ListenerStats = c.ListenerStats.clone()
		all[network] = c
	}
	return all
}

// increment adds one to a counter in a map, which may be nil.
func increment(m *map[ReasonCode]uint64, code ReasonCode) {
	if *m == nil {
		*m = make(map[ReasonCode]uint64)
	}
	(*m)[code]++
}

// listenerStats counts for one listener, by network, and for the process as well.
type listenerStats struct {
	mu sync.Mutex
	of map[string]ListenerStats
}

func (s *listenerStats) count(network string, add func(s *ListenerStats)) {
	s.mu.Lock()
	if s.of == nil {
		s.of = make(map[string]ListenerStats)
	}
	of := s.of[network]
	add(&of)
	s.of[network] = of
	s.mu.Unlock()
	totals.count(network, func(t *NetworkTotals) { add(&t.ListenerStats) })
}

func (s *listenerStats) snapshot(network string) ListenerStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[network].clone()
}

func (s ListenerStats) clone() ListenerStats {
	s.Failed = maps.Clone(s.Failed)
	return s
}
