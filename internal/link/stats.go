package link

// Traffic counts data, and queue pairs that it has outlived.
type Traffic struct {
	BytesSent        uint64
	BytesReceived    uint64 // read or not
	MessagesSent     uint64 // data messages: work requests with data
	MessagesReceived uint64
	Moves            uint64 // times that a link has gone on over another queue pair
}

func (t *Traffic) add(more Traffic) {
	t.BytesSent += more.BytesSent
	t.BytesReceived += more.BytesReceived
	t.MessagesSent += more.MessagesSent
	t.MessagesReceived += more.MessagesReceived
	t.Moves += more.Moves
}

// addBytes adds what a stream has carried.
func (t *Traffic) addBytes(s *Stream) {
	t.BytesSent += s.ledger.Sent()
	t.BytesReceived += s.ledger.Received()
}

// Stats counts what a link has done.
type Stats struct {
	Traffic
	RecordsSent  uint64 // SENDs with records
	CreditsSent  uint64 // SENDs of link credit alone
	WorkRequests uint64 // posted, of all kinds
	Signaled     uint64 // of those, the signaled ones
	Events       uint64 // times that the engine was woken
	Probes       uint64 // sent: writes of nothing, for keepalive or to have staging memory back
}

// Stats returns a snapshot of the link's counters.
func (l *Link) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counted()
}

// counted is what the link and the streams on it have done. Called with mu held.
func (l *Link) counted() Stats {
	stats := l.stats
	for _, s := range l.streams {
		if s != nil {
			stats.addBytes(s)
		}
	}
	return stats
}

// StreamStats counts what a stream has done.
type StreamStats struct {
	Traffic
	BytesWritten    uint64 // accepted by Write, without what was dropped unsent
	CreditsSent     uint64 // CREDIT records
	CreditsReceived uint64
	ReadWaits       uint64 // times that a call waited for something to read
	WriteWaits      uint64 // times that a call waited for room
	Memory          int    // bytes of this end's rings, at the moment
}

// Stats returns a snapshot of the stream's counters. It works after Close.
func (s *Stream) Stats() StreamStats {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	stats := s.stats
	stats.addBytes(s)
	stats.BytesWritten = s.ledger.Accepted()
	stats.ReadWaits, stats.WriteWaits = s.calls[readCall].waits.Load(), s.calls[writeCall].waits.Load()
	stats.Memory = s.inbox.held.size + s.inbox.drained.size + s.inbox.offered.size
	return stats
}
