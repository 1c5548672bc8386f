package link

import (
	"reflect"
	"time"

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

// add adds each counter.
func (s *Stats) add(more Stats) {
	sum, added := reflect.ValueOf(s).Elem(), reflect.ValueOf(more)
	for i := range sum.NumField() {
		sum.Field(i).SetUint(sum.Field(i).Uint() + added.Field(i).Uint())
	}
}

// Stats returns a snapshot of the link's counters.
func (l *Link) Stats() Stats {
	l.lock()
	defer l.unlock()
	return l.stats
}

// StreamStats counts what a stream has done since it began: it has the fields of rconn.Stats, which documents
// them.
type StreamStats struct {
	BytesWritten     uint64        `json:"bytes_written"` // that Write has accepted, without those that Close has discarded
	BytesReceived    uint64        `json:"bytes_received"`
	MessagesSent     uint64        `json:"-"` // work requests with data
	MessagesReceived uint64        `json:"-"` // work requests with data
	CreditsSent      uint64        `json:"-"` // messages that give room in a ring back
	CreditsReceived  uint64        `json:"-"` // messages that give room in a ring back
	ReadWaits        uint64        `json:"read_waits"`
	WriteWaits       uint64        `json:"write_waits"`
	Memory           int           `json:"ring"` // bytes of the rings at this end, at the moment
	RTT              time.Duration `json:"-"`    // over TCP alone
}

// Stats returns a snapshot of the stream's counters. It works after Close.
func (s *Stream) Stats() StreamStats {
	s.link.lock()
	defer s.link.unlock()
	return s.counted()
}

// counted is Stats. Called with mu held.
func (s *Stream) counted() StreamStats {
	stats := s.stats
	stats.BytesWritten, stats.BytesReceived = s.ledger.Accepted(), s.ledger.Received()
	stats.ReadWaits, stats.WriteWaits = s.calls[readCall].waits.Load(), s.calls[writeCall].waits.Load()
	stats.Memory = s.inbox.held.size + s.inbox.drained.size + s.inbox.offered.size
	return stats
}

// StreamState is what a stream is doing at one moment.
type StreamState struct {
	StreamStats
	State        string    `json:"state"`                  // in one word: see Stream.State
	SeekingSince time.Time `json:"seeking_since,omitzero"` // as that of the link's Info
	Unread       int       `json:"unread"`                 // bytes that have arrived and were not read
	Unsent       int       `json:"unsent"`                 // bytes that Write has accepted and that have not left
}

// State returns a snapshot of what the stream is doing, unless something holds the link's lock until
// enough is closed. Its State is one of
//
//	open          both sides may write
//	fin-sent      this side has ended its direction
//	fin-received  the peer has ended its direction
//	finished      both have
//	reset         the peer has reset it
//	aborted       Abort has ended it
//	closing       its owner has closed it, and the peer has not
//	ended         the link has ended
//
// It works after Close.
func (s *Stream) State(enough <-chan struct{}) (state StreamState, known bool) {
	return glance(s.link, enough, func() StreamState {
		return StreamState{s.counted(), s.state(), s.link.seekingSince(), s.ledger.Unconsumed(), s.ledger.Pending()}
	})
}

// state is State's State. Called with mu held.
func (s *Stream) state() string {
	received := s.ledger.EndReceived()
	switch {
	case s.link.failed() != nil:
		return "ended"
	case s.use == orphaned:
		return "closing"
	case s.use == aborted:
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
