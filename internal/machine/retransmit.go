package machine

import (
	"fmt"
	"slices"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// message is a message that this side has sent and that the peer has not acknowledged: what
// it takes to send it again. Bytes of registered memory stay where they are, and are freed
// no later because of the retransmit queue: see lostBytes.
type message struct {
	id      uint64        // of its work request, on each queue pair
	records bool          // with records; else with data
	data    []byte        // of the memory; inline, of kept
	memory  fabric.Memory // nil: inline
	kept    []byte        // a copy of inline data; its memory is used again with the message's place in the queue
	in      *area         // data of the staging memory
	from    uint64        // its position there
	loan    *Loan         // data of a buffer
	imm     uint32
	addr    uint64 // in the peer's memory
	rkey    uint32
}

// retransmitQueue is the messages of a link that its peer has not acknowledged. They arrive in
// order, so the peer has received the first of them; the ledger tells how many.
type retransmitQueue struct {
	messages []message // the live ones at their numbers modulo length, a power of two
	first    uint64    // number of the oldest
	next     uint64    // number of the next
	again    int       // so many of the last are to be sent again
}

func (q *retransmitQueue) message(n uint64) *message { return &q.messages[n&uint64(len(q.messages)-1)] }

// len is how many messages there are, and at the i-th of them, from 0.
func (q *retransmitQueue) len() int          { return int(q.next - q.first) }
func (q *retransmitQueue) at(i int) *message { return q.message(q.first + uint64(i)) }

// add makes a place for a message, which has the memory of the last message there in kept. A
// message that overtook those that are to be sent again would take the place of one of them,
// which the peer would never get: see maySendNew.
func (q *retransmitQueue) add() *message {
	if q.again > 0 {
		panic(fmt.Sprintf("machine: a message before %d that are to be sent again", q.again))
	}
	if q.len() == len(q.messages) {
		old := *q
		q.messages = make([]message, max(64, 2*len(old.messages)))
		for n := q.first; n != q.next; n++ {
			*q.message(n) = *old.message(n)
		}
	}
	m := q.message(q.next)
	q.next++
	return m
}

// retain keeps a work request with bytes of a chunk, if it has any, or of the caller's,
// inline, unless the link would not send it again anyway.
func (l *Link) retain(wr *fabric.WorkRequest, of *chunk) {
	if !l.path.resumes {
		return
	}
	m := l.unacked.add()
	*m = message{
		id:      wr.ID,
		records: wr.Op == fabric.Send,
		data:    wr.Data,
		memory:  wr.Memory,
		kept:    m.kept,
		imm:     wr.Imm,
		addr:    wr.RemoteAddr,
		rkey:    wr.RKey,
	}
	if wr.Memory == nil {
		m.kept = append(m.kept[:0], wr.Data...)
		for _, b := range wr.Rest {
			m.kept = append(m.kept, b...)
		}
		m.data = m.kept
	}
	if of != nil {
		m.in, m.from, m.loan = of.in, of.from, of.loan
	}
}

// lost reports whether the bytes of a message have been freed.
func (m *message) lost() bool {
	switch {
	case m.memory == nil, m.records, len(m.data) == 0:
		return false
	case m.loan != nil:
		return m.loan.over()
	}
	return m.from < m.in.ring.Tail()
}

// trimAcknowledged takes out of the retransmit queue what the peer has acknowledged. The peer breaks the protocol if
// that is more than was sent again.
func (l *Link) trimAcknowledged() error {
	if !l.path.resumes {
		return nil
	}
	n := l.ledger.Unacknowledged()
	if n < l.unacked.again {
		return fmt.Errorf("acknowledgement of %d messages that have yet to be sent again", l.unacked.again-n)
	}
	l.unacked.first = l.unacked.next - uint64(n)
	return nil
}

// lostBytes reports whether bytes that would have to be sent again have been freed: the peer's
// device had acknowledged them, so this side reused their memory, and then the device died
// before its host had them.
func (l *Link) lostBytes() bool {
	for i := range l.unacked.len() {
		if l.unacked.at(i).lost() {
			return true
		}
	}
	return false
}

// sendAgain has each message in the retransmit queue sent again on a new queue pair, in order
// and before any other. Each has the number that it had: what waits for its completion waits for that of
// its repetition. The numbers of what is not sent again count as completed.
func (l *Link) sendAgain(x *Exchange) {
	r, q := &l.unacked, &l.send
	r.again = r.len()
	next := q.slots.Next()
	if r.again > 0 {
		next = r.at(0).id
	}
	q.slots.Restart(next, x.UnderWay)
	q.control.credits.forget()
	q.control.probes.forget()
	for _, s := range l.Streams() {
		s.peer.RKey, s.next.RKey, s.named.Ring.RKey = x.Peer.Key(s.peer), x.Peer.Key(s.next), x.Peer.Key(s.named.Ring)
		if s.end != 0 && !s.end.completed(&q.slots) && !slices.Contains(q.awaitingEnds, s) { // it had completed before
			q.awaitingEnds = append(q.awaitingEnds, s)
		}
	}
	q.control.target.RKey = x.Peer.Key(q.control.target)
	for i := range r.again {
		m := r.at(i)
		m.rkey = x.Peer.Key(wire.RingPlace{Addr: m.addr, RKey: m.rkey})
		if m.records {
			for r := m.data[wire.HeaderSize:]; len(r) > 0; r = r[wire.RecordSize:] {
				x.Own.Rekey(r)
			}
		}
	}
	q.unsignaledBytes = 0
	q.window.restart()
}

// pushAgain adds what is to be sent again, as far as there is room for it.
func (l *Link) pushAgain() {
	q := &l.send
	for l.mayPost() && l.unacked.again > 0 && len(q.batch) < MaxBatch-controlBatch {
		m := l.unacked.at(l.unacked.len() - l.unacked.again)
		if !q.slots.PostAgain(m.id, m.records) {
			return
		}
		l.unacked.again--
		q.signal = true
		wr := l.push(m.id)
		wr.Op, wr.Imm = fabric.WriteImm, m.imm
		wr.Data, wr.Memory = m.data, m.memory
		wr.RemoteAddr, wr.RKey = m.addr, m.rkey
		q.batchBytes += len(m.data)
		if m.records {
			l.repost()
			acked := l.ledger.Acknowledge()
			wire.Header{Data: acked.Data, Records: acked.Records}.Put(m.data)
			wr.Op = fabric.Send
		}
	}
}

// Streams is the streams in the table, and those that are not any more but wait for
// the completion of their end.
func (l *Link) Streams() (all []*Stream) {
	for _, s := range l.streams.byNumber {
		if s != nil {
			all = append(all, s)
		}
	}
	for _, s := range l.send.awaitingEnds {
		if l.streams.byNumber[s.number] != s {
			all = append(all, s)
		}
	}
	return all
}
