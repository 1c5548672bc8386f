package link

// Data counts what a stream or a link has carried.
type Data struct {
	BytesSent        uint64
	BytesReceived    uint64 // read or not
	MessagesSent     uint64 // data messages: work requests with data
	MessagesReceived uint64
}

func (d *Data) add(more Data) {
	d.BytesSent += more.BytesSent
	d.BytesReceived += more.BytesReceived
	d.MessagesSent += more.MessagesSent
	d.MessagesReceived += more.MessagesReceived
}

// addBytes adds the bytes of a stream, which its ledger counts.
func (d *Data) addBytes(s *Stream) {
	d.BytesSent += s.ledger.Sent()
	d.BytesReceived += s.ledger.Received()
}

// Traffic counts what the links of a network have carried, and how often they have moved.
type Traffic struct {
	Data
	Moves uint64 // times that a link has gone on over another queue pair
}

func (t *Traffic) add(more Traffic) {
	t.Data.add(more.Data)
	t.Moves += more.Moves
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
	for _, s := range l.streams.byNumber {
		if s != nil {
			stats.addBytes(s)
		}
	}
	return stats
}

// StreamStats counts what a stream has done.
type StreamStats struct {
	Data
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
