package link

import (
	"time"

	"github.com/ringnet/ringnet/internal/machine"
)

// Stats counts what a link has done.
type Stats = machine.Stats

// Stats returns a snapshot of the link's counters.
func (l *Link) Stats() Stats {
	l.lock()
	defer l.unlock()
	return l.m.Stats()
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

// counted is Stats.
func (s *Stream) counted() StreamStats {
	m := s.m.Stats()
	return StreamStats{
		BytesWritten:     m.BytesWritten,
		BytesReceived:    m.BytesReceived,
		MessagesSent:     m.MessagesSent,
		MessagesReceived: m.MessagesReceived,
		CreditsSent:      m.CreditsSent,
		CreditsReceived:  m.CreditsReceived,
		ReadWaits:        s.calls[readCall].waits.Load(),
		WriteWaits:       s.calls[writeCall].waits.Load(),
		Memory:           m.Memory,
	}
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
		return StreamState{s.counted(), s.m.State(), s.link.seekingSince(), s.m.Unread(), s.m.Unsent()}
	})
}
