package link

import (
	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// pushRecords adds SENDs with the records that are due, those of the streams in turn.
// Called with mu held.
func (l *Link) pushRecords() {
	q := &l.send
	for (q.withRecords.len() > 0 || l.maySayGoAway()) && len(q.batch) < maxBatch-2 && l.ledger.MaySendRecords() && q.control.records.free(&q.slots) {
		if !l.repost() { // before a ledger counts a record as sent
			return
		}
		records := &q.records
		n := 0
		after := q.slots.Next() + 1
		for ; n < len(records) && q.withRecords.len() > 0; n++ {
			r, ok := l.nextRecord(after)
			if !ok {
				break
			}
			records[n] = r
		}
		if n < len(records) && l.maySayGoAway() {
			l.leaving.goAway = goAwaySaid
			records[n] = wire.Record{Type: credit.GoAwayRecord}
			n++
		}
		if n == 0 {
			return
		}
		if l.leaving.goAway == goAwaySaid {
			l.leaving.after = after
		}
		l.stats.ControlSent++
		l.pushMessage(&q.control.records, l.ledger.SendRecords(), records[:n])
	}
}

// nextRecord takes the next record that is due, of the stream whose turn it is. It travels
// with a work request that completes as number after. Called with mu held.
func (l *Link) nextRecord(after uint64) (wire.Record, bool) {
	q := &l.send
	for q.withRecords.len() > 0 {
		s := q.withRecords.pop()
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
			r.Port = s.local.Port()
		case credit.CreditRecord:
			r.Position = value
			if room {
				s.credited()
			}
		case credit.FinRecord, credit.ResetRecord:
			r.Position = value
			r.Late = due == credit.ResetRecord && s.use == orphaned && !s.closing.unread
			if s.end == 0 || q.slots.Completed(s.end) { // else it is among them
				q.awaitingEnds = append(q.awaitingEnds, s)
			}
			s.end = after
			s.closing.told = l.ledger.Sent().Records + 1
		case credit.AcceptRecord:
			l.streams.unanswered--
			s.wake() // its owner may have the stream already, and wait to Write
		case credit.RefuseRecord:
			l.streams.unanswered--
			r.Reason = s.refusal
		}
		s.changed()
		return r, true
	}
	return wire.Record{}, false
}

// offer is the ring that a record tells of. Called with mu held.
func (s *Stream) offer(r credit.Record) wire.RingPlace {
	switch r {
	case credit.OpenRecord, credit.AcceptRecord:
		return s.inbox.held.place()
	case credit.RingRecord:
		return s.inbox.offered.place()
	}
	return wire.RingPlace{}
}

// pushMessage adds a SEND to the batch: what this side acknowledges, and records, or none
// for link credit. Called with mu held.
func (l *Link) pushMessage(c *controlSends, acked credit.Totals, records []wire.Record) {
	wr := l.push(true)
	b := c.take(wr.ID + 1)
	wire.Header{Data: acked.Data, Records: acked.Records}.Put(b)
	for i, r := range records {
		r.Put(b[wire.HeaderSize+i*wire.RecordSize:])
	}
	wr.Op, wr.Memory = fabric.Send, l.send.staging.memory
	wr.Data = b[:wire.HeaderSize+len(records)*wire.RecordSize]
	if len(records) > 0 {
		l.retain(wr, nil)
	}
}

// pushProbe adds a write of nothing, which only the peer's device sees. Called with mu
// held.
func (l *Link) pushProbe() {
	l.alive.due = false
	l.alive.probed = l.now()
	l.stats.Probes++
	wr := l.push(true)
	wr.Op, wr.RemoteAddr, wr.RKey = fabric.Write, l.send.control.target.Addr, l.send.control.target.RKey
	l.send.control.probes.after[0] = wr.ID + 1
}
