package proxy

import (
	"maps"

	"github.com/ringnet/ringnet"
)

// Outcome is how a connection has ended: a label of metrics.
type Outcome string

const (
	Finished    Outcome = "finished"    // both ends have ended their streams
	Lost        Outcome = "lost"        // one end was gone before, and the other was reset
	Undelivered Outcome = "undelivered" // what was written last may not have arrived
	Idled       Outcome = "idle"        // nothing moved for too long
	Drained     Outcome = "drained"     // it was between requests when the proxy stopped
	Cut         Outcome = "cut"         // it had not ended in time when the proxy stopped

	TooMany     Outcome = "too_many"     // refused: as many were there as may be
	NotRequired Outcome = "not_required" // refused: carried by a network that is not required
	Unreachable Outcome = "unreachable"  // reset: the connection behind the proxy could not be made
)

// Outcomes are all there are.
var Outcomes = []Outcome{Finished, Lost, Undelivered, Idled, Drained, Cut, TooMany, NotRequired, Unreachable}

// end is how c has ended, if its run returned err.
func (c *connection) end(err error) Outcome {
	switch why := c.outcome.Load(); {
	case why != nil:
		return *why
	case err == nil:
		return Finished
	case truncated(err):
		return Lost
	}
	return Undelivered
}

// Stats are what a proxy has done, and does.
type Stats struct {
	Connections int                // at the moment, those that are being dialed included
	Accepted    map[string]uint64  // by the network that carries them
	Dialed      map[string]uint64  // the same, behind the proxy
	PassedOver  map[Miss]uint64    // dialed connections that a better network does not carry
	Ended       map[Outcome]uint64 // also what never began
	Requested   uint64             // bytes that have moved from clients
	Replied     uint64             // and to clients
}

// Miss is a network that does not carry a connection, and why.
type Miss struct {
	Network string
	Code    ringnet.ReasonCode
}

func newStats() Stats {
	return Stats{
		Accepted:   make(map[string]uint64),
		Dialed:     make(map[string]uint64),
		PassedOver: make(map[Miss]uint64),
		Ended:      make(map[Outcome]uint64),
	}
}

// add counts what has moved on c.
func (s *Stats) add(c *connection) {
	s.Requested += c.requests.moved.Load()
	s.Replied += c.replies.moved.Load()
}

// Stats returns a snapshot.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Accepted, s.Dialed = maps.Clone(s.Accepted), maps.Clone(s.Dialed)
	s.PassedOver, s.Ended = maps.Clone(s.PassedOver), maps.Clone(s.Ended)
	for c := range p.connections {
		s.add(c)
	}
	return s
}
