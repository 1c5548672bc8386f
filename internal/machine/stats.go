package machine

import (
	"reflect"

	"github.com/ringnet/ringnet/credit"
)

// Stats counts what a link has done. What `ringnet ss` tells of it has a name in JSON.
type Stats struct {
	BytesSent        uint64 `json:"bytes_sent"`     // of data
	BytesReceived    uint64 `json:"bytes_received"` // of data, read or not
	MessagesSent     uint64 `json:"-"`              // work requests with data
	MessagesReceived uint64 `json:"-"`              // work requests with data
	ControlSent      uint64 `json:"-"`              // SENDs: with records, or link credit alone
	Moves            uint64 `json:"moves"`          // times that the link has lost its queue pair and gone on over another
	WorkRequests     uint64 `json:"work_requests"`  // posted, of all kinds
	Signaled         uint64 `json:"-"`              // of those, the signaled ones
	Events           uint64 `json:"events"`         // times that the engine was woken
	Probes           uint64 `json:"-"`              // sent: writes of nothing, for keepalive or to have staging memory back
}

// Stats returns the link's counters.
func (l *Link) Stats() Stats { return l.stats }

// Woken counts an event.
func (l *Link) Woken() { l.stats.Events++ }

// StreamStats counts what a stream has done since it began.
type StreamStats struct {
	BytesWritten     uint64 // accepted, without those that Close has discarded
	BytesReceived    uint64
	MessagesSent     uint64 // work requests with data
	MessagesReceived uint64 // work requests with data
	CreditsSent      uint64 // messages that give room in a ring back
	CreditsReceived  uint64 // messages that give room in a ring back
	Memory           int    // bytes of the rings at this end, at the moment
}

// Stats returns the stream's counters. It works after Close.
func (s *Stream) Stats() StreamStats {
	stats := s.stats
	stats.BytesWritten, stats.BytesReceived = s.ledger.Accepted(), s.ledger.Received()
	stats.Memory = s.RingMemory()
	return stats
}

// State is in one word what the stream is doing: see link.Stream.State.
func (s *Stream) State() string {
	received := s.ledger.EndReceived()
	switch {
	case s.link.failed() != nil:
		return "ended"
	case s.use == Orphaned:
		return "closing"
	case s.use == Aborted:
		return "aborted"
	case received&credit.ResetEnd != 0:
		return "reset"
	case received != 0 && s.ledger.Closing():
		return "finished"
	case received != 0:
		return "fin-received"
	case s.ledger.Closing():
		return "fin-sent"
	}
	return "open"
}

// Moves is how often the link has gone on over another queue pair.
func (l *Link) Moves() uint64 { return l.stats.Moves }

// Add adds each counter.
func (s *Stats) Add(more Stats) {
	sum, added := reflect.ValueOf(s).Elem(), reflect.ValueOf(more)
	for i := range sum.NumField() {
		sum.Field(i).SetUint(sum.Field(i).Uint() + added.Field(i).Uint())
	}
}
