package ringnet

// What this process's connections, dials and listeners have done.

import (
	"errors"
	"maps"
	"net"
	"sync"

	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/pconn"
	"github.com/ringnet/ringnet/rconn"
)

// Stats counts what a connection has done.
type Stats = rconn.Stats

// ListenerStats counts what a listener has done on one network.
type ListenerStats struct {
	// Accepted are connections that Accept has returned.
	Accepted uint64

	// FellBack are those of Accepted that TCP carries although the listener offered a
	// better network: their dialers could not have that, or have no ringnet. On "tcp"
	// alone.
	FellBack uint64

	// Failed are connections, and links for the first of them, that dialers asked for
	// in vain, by the reason: they were refused for want of room (ReasonFull: Backlog,
	// PendingMemory) or memory (ReasonMemory, ReasonLockedMemory), the dialer did not
	// confirm (ReasonSilent, ReasonReset), TCP did not come to the same listener
	// (ReasonElsewhere), and so on. Most dialers ask again in a while, which counts
	// again. Connections that end because the listener was closed do not count.
	Failed map[ReasonCode]uint64
}

// NetworkTotals counts what this process has done over one network since it started.
// No number ever falls.
type NetworkTotals struct {
	// Dialed are connections that dials have returned, by the network that carries
	// them, and DialsFailed dials that have failed, by the network that was asked for,
	// which may be "auto", and the reason.
	Dialed      uint64
	DialsFailed map[ReasonCode]uint64

	// PassedOver are the reasons why dials of "auto" have not connected over the
	// network, whether they connected over another or failed.
	PassedOver map[ReasonCode]uint64

	ListenerStats // of all listeners

	// Opened are connections that have begun, those which no Accept has returned
	// yet and some that no dial has wanted any more included, and Closed those of them
	// that were closed.
	Opened, Closed uint64

	// What all connections have carried, closed ones included. Messages are work
	// requests with data; 0 over TCP. Over TCP a call counts when it returns, and
	// what goes past the AutoConn, by its NetConn, does not count.
	BytesSent, BytesReceived       uint64
	MessagesSent, MessagesReceived uint64

	// LinksMoved counts the times that a link has lost its queue pair and has gone on over
	// another ([Config.ResumeTimeout]), as each end of it sees it.
	LinksMoved uint64

	// LinksLost are links that did not end since they had nothing to carry any more,
	// by the reason.
	LinksMade uint64
	LinksLost map[ReasonCode]uint64

	// Datagrams is what all PacketConns have done, closed ones included.
	Datagrams PacketStats
}

// Totals returns what this process has done over each network since it started: by
// "shm", "rdma" and "tcp", and "auto" for what concerns none of them; by "shm-udp" and
// "rdma-udp" the Datagrams, of which the others have none. A network with which nothing
// has been done is absent. TCP is that of "auto" alone. [Memory] tells what memory is in
// use.
func Totals() map[string]NetworkTotals {
	all := totals.snapshot()
	for network, carried := range link.Totals() {
		t := all[network]
		t.BytesSent, t.BytesReceived = carried.BytesSent, carried.BytesReceived
		t.MessagesSent, t.MessagesReceived = carried.MessagesSent, carried.MessagesReceived
		t.LinksMoved = carried.Moves
		all[network] = t
	}
	for network, datagrams := range pconn.Totals() {
		t := all[network]
		t.Datagrams = datagrams
		all[network] = t
	}
	sent, received := tcpBytes.sum()
	if t, ok := all["tcp"]; ok {
		t.BytesSent, t.BytesReceived = sent, received
		all["tcp"] = t
	}
	return all
}

// totals are what is counted when it happens.
var totals = processTotals{networks: make(map[string]*NetworkTotals)}

type processTotals struct {
	mu       sync.Mutex
	networks map[string]*NetworkTotals
}

// count has add, which is called with mu held, count something on a network.
func (p *processTotals) count(network string, add func(t *NetworkTotals)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.networks[network]
	if t == nil {
		t = new(NetworkTotals)
		p.networks[network] = t
	}
	add(t)
}

func (p *processTotals) snapshot() map[string]NetworkTotals {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]NetworkTotals, len(p.networks))
	for network, t := range p.networks {
		c := *t
		c.DialsFailed, c.PassedOver, c.LinksLost = maps.Clone(c.DialsFailed), maps.Clone(c.PassedOver), maps.Clone(c.LinksLost)
		c.ListenerStats = c.ListenerStats.clone()
		all[network] = c
	}
	return all
}

// increment adds one to a counter of a map that may not exist yet.
func increment(m *map[ReasonCode]uint64, code ReasonCode) {
	if *m == nil {
		*m = make(map[ReasonCode]uint64)
	}
	(*m)[code]++
}

// listenerStats are those of a listener. What they count, the process's totals do too.
type listenerStats struct {
	mu sync.Mutex
	ListenerStats
}

func (s *listenerStats) count(network string, add func(s *ListenerStats)) {
	s.mu.Lock()
	add(&s.ListenerStats)
	s.mu.Unlock()
	totals.count(network, func(t *NetworkTotals) { add(&t.ListenerStats) })
}

// accepted counts a connection that Accept returns.
func (s *listenerStats) accepted(network string) {
	s.count(network, func(s *ListenerStats) { s.Accepted++ })
}

// failed counts what a dialer has asked for in vain.
func (s *listenerStats) failed(network string, code ReasonCode) {
	s.count(network, func(s *ListenerStats) { increment(&s.Failed, code) })
}

func (s *listenerStats) snapshot() ListenerStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clone()
}

func (s ListenerStats) clone() ListenerStats {
	s.Failed = maps.Clone(s.Failed)
	return s
}

// countDial counts a dial of a network that has ended, with c or err.
func countDial(network string, c net.Conn, err error) {
	for _, r := range passedOver(c, err) {
		totals.count(r.Network, func(t *NetworkTotals) { increment(&t.PassedOver, r.Code) })
	}
	if err != nil {
		totals.count(network, func(t *NetworkTotals) { increment(&t.DialsFailed, codeOf(err)) })
		return
	}
	totals.count(c.LocalAddr().Network(), func(t *NetworkTotals) { t.Dialed++ })
}

// passedOver are the reasons why a dial has not connected over better networks.
func passedOver(c net.Conn, err error) []Reason {
	var required *requiredError
	var tcp *autoError
	switch {
	case errors.As(err, &required):
		return required.reasons
	case errors.As(err, &tcp):
		return tcp.passedOver
	case err != nil:
		return nil
	}
	if auto, ok := c.(*AutoConn); ok {
		return auto.passedOver
	}
	return nil
}
