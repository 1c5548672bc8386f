package proxy

import (
	"errors"
	"maps"
	"syscall"

	"github.com/ringnet/ringnet"
)

// Outcome is how a connection has ended: a label of metrics.
type Outcome string

const (
	Finished    Outcome = "finished"    // both ends have ended their streams
	Reset       Outcome = "reset"       // one end was reset by its program or its system before, and so was the other
	Lost        Outcome = "lost"        // the way to one end was lost before, and the other was reset
	Undelivered Outcome = "undelivered" // the last bytes written may not have arrived
	Idled       Outcome = "idle"        // it was without traffic for too long
	Drained     Outcome = "drained"     // it was without traffic when the proxy stopped
	Cut         Outcome = "cut"         // it had not ended in time when the proxy stopped

	TooMany     Outcome = "too_many"     // refused: there were MaxConnections
	NotRequired Outcome = "not_required" // refused: none of the required networks carries it
	Unreachable Outcome = "unreachable"  // reset: the proxy could not dial
)

// Outcomes are all outcomes.
var Outcomes = []Outcome{Finished, Reset, Lost, Undelivered, Idled, Drained, Cut, TooMany, NotRequired, Unreachable}

// end returns how c has ended, given the error of its run.
func (c *connection) end(err error) Outcome {
	switch why := c.outcome.Load(); {
	case why != nil:
		return *why
	case err == nil:
		return Finished
	case truncated(err):
		return lossBy(err)
	}
	return Undelivered
}

// lossBy is the outcome of a connection of which an end has failed. Programs that close a connection
// with bytes unread, as iperf3 does, reset it.
func lossBy(err error) Outcome {
	if errors.Is(err, syscall.ECONNRESET) {
		return Reset
	}
	return Lost
}

// Stats are the counters of a proxy.
type Stats struct {
	Connections int                // at the moment, those that are being dialed included
	Accepted    map[string]uint64  // connections, by the network that carries them
	Dialed      map[string]uint64  // connections, by the network that carries them
	PassedOver  map[Miss]uint64    // dialed connections that a better network does not carry
	Ended       map[Outcome]uint64 // connections, those that were refused included
	Requested   uint64             // bytes moved from clients
	Replied     uint64             // bytes moved to clients
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

// add counts the bytes that c has moved.
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
