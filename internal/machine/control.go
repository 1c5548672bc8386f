package machine

import (
	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

// control is the control messages of a link.
type control struct {
	memory  fabric.Memory
	records controlSends   // with records
	credits controlSends   // with link credit alone
	probes  controlSends   // that ask for a sign of life
	target  wire.RingPlace // that probes name
}

// controlSends are control messages of one kind, each with a buffer that is used
// again when its work request has completed.
type controlSends struct {
	buffers []byte // wire.MessageSize bytes for each
	sent    []sent // each
	next    int
}

// ControlMemory is the memory, in bytes, for control messages, behind the first staging memory.
const ControlMemory = (credit.RecordWindow + 1) * wire.MessageSize

// newControl has the control messages in memory from a place on.
func newControl(memory fabric.Memory, from int) control {
	b := memory.Bytes()[from : from+ControlMemory]
	return control{
		memory:  memory,
		records: controlSends{buffers: b, sent: make([]sent, credit.RecordWindow)},
		credits: controlSends{buffers: b[credit.RecordWindow*wire.MessageSize:], sent: make([]sent, 1)},
		probes:  controlSends{sent: make([]sent, 1)},
	}
}

// free reports whether the next may be sent.
func (c *controlSends) free(slots *credit.Slots) bool {
	n := c.sent[c.next]
	return n == 0 || n.completed(slots)
}

// take returns the next buffer, for a work request, and whether that is to be signaled for the buffers to be free again:
// the last of either half is.
func (c *controlSends) take(n sent) (b []byte, last bool) {
	i := c.next
	c.sent[i] = n
	c.next = (i + 1) % len(c.sent)
	half := max(len(c.sent)/2, 1)
	return c.buffers[i*wire.MessageSize:][:wire.MessageSize], i%half == half-1
}

// forget notes that none of them will complete.
func (c *controlSends) forget() { clear(c.sent) }

// Scratch is memory for one control message, of which nothing else makes use while the link has no queue pair. Link
// credits have it, whose next may be sent before the device has completed what was sent from here: its peer has answered
// that, so it has left.
func (l *Link) Scratch() (fabric.Memory, []byte) {
	return l.send.control.memory, l.send.control.credits.buffers[:0:wire.MessageSize]
}

// pushRecords adds SENDs with the records that are due, those of the streams in turn.
func (l *Link) pushRecords() {
	q := &l.send
	for (q.withRecords.Len() > 0 || l.maySayGoAway()) && len(q.batch) < MaxBatch-2 && l.ledger.MaySendRecords() && q.control.records.free(&q.slots) {
		l.repost()
		records := &q.records
		n := 0
		with := sent(q.slots.Next() + 1)
		for ; n < len(records) && q.withRecords.Len() > 0; n++ {
			r, ok := l.nextRecord(with)
			if !ok {
				break
			}
			records[n] = r
		}
		if n < len(records) && l.maySayGoAway() {
			l.goingAway.goAway = goAwaySaid
			records[n] = wire.Record{Type: credit.GoAwayRecord}
			n++
		}
		if n == 0 {
			return
		}
		if l.goingAway.goAway == goAwaySaid {
			l.goingAway.last = with
			q.signal = true
		}
		l.stats.ControlSent++
		l.pushMessage(&q.control.records, l.ledger.SendRecords(), records[:n])
	}
}

// nextRecord takes the next record that is due, of the stream whose turn it is, for a work request.
func (l *Link) nextRecord(with sent) (wire.Record, bool) {
	q := &l.send
	for q.withRecords.Len() > 0 {
		s := q.withRecords.Pop()
		s.inRecordLine = false
		due := s.ledger.Due()
		if due == credit.NoRecord {
			continue // it may wait for data to be sent first
		}
		r := wire.Record{Type: due, Stream: s.number, Ring: s.offer(due)}
		room := s.ledger.CreditGivesRoom()
		value := s.ledger.SendRecord(due)
		switch due {
		case credit.OpenRecord:
			r.Port = s.port
		case credit.CreditRecord:
			r.Position = value
			if room {
				s.creditSent(value)
			}
		case credit.FinRecord, credit.ResetRecord:
			r.Position = value
			r.Late = due == credit.ResetRecord && s.use == Orphaned && !s.closing.unread
			if s.end == 0 || s.end.completed(&q.slots) { // else it is among them
				q.awaitingEnds = append(q.awaitingEnds, s)
			}
			s.end = with
			q.signal = true // for a Close
			s.closing.told = l.ledger.Sent().Records + 1
		case credit.AcceptRecord:
			l.streams.unanswered--
			s.touch() // its owner may have the stream already, and wait to Write
		case credit.RefuseRecord:
			l.streams.unanswered--
			r.Reason = s.refusal
		}
		s.ledgerChanged()
		return r, true
	}
	return wire.Record{}, false
}

// place is what the peer is told of a ring.
func place(p ring.Piece) wire.RingPlace {
	return wire.RingPlace{Addr: p.Addr(), RKey: p.Memory().RKey(), Size: p.Size()}
}

// offer is the ring that a record tells of.
func (s *Stream) offer(r credit.Record) wire.RingPlace {
	switch r {
	case credit.OpenRecord, credit.AcceptRecord:
		return place(s.inbox.held)
	case credit.RingRecord:
		return place(s.inbox.offered)
	}
	return wire.RingPlace{}
}

// pushMessage adds a SEND to the batch: what this side acknowledges, and records, or none
// for link credit.
func (l *Link) pushMessage(c *controlSends, acked credit.Totals, records []wire.Record) {
	wr := l.push(l.send.slots.Post())
	b, last := c.take(sent(wr.ID + 1))
	l.send.signal = l.send.signal || last
	wire.Header{Data: acked.Data, Records: acked.Records}.Put(b)
	for i, r := range records {
		r.Put(b[wire.HeaderSize+i*wire.RecordSize:])
	}
	wr.Op, wr.Memory = fabric.Send, l.send.control.memory
	wr.Data = b[:wire.HeaderSize+len(records)*wire.RecordSize]
	if len(records) > 0 {
		l.retain(wr, nil)
	}
}

// pushProbe adds a write of nothing, which only the peer's device sees.
func (l *Link) pushProbe() {
	l.alive.due = false
	l.alive.probed = l.now()
	l.stats.Probes++
	l.send.signal = true
	wr := l.push(l.send.slots.Post())
	wr.Op, wr.RemoteAddr, wr.RKey = fabric.Write, l.send.control.target.Addr, l.send.control.target.RKey
	l.send.control.probes.sent[0] = sent(wr.ID + 1)
}
