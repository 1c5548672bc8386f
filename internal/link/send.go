package link

import (
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

// A work request carries maxMessage bytes at most. As many as worthwhile do not
// wait for more: they take some microseconds at 100 Gb/s, so that the cost of a
// request vanishes, and the peer can copy them while the next are on their way.
const (
	maxMessage = 256 << 10
	worthwhile = 64 << 10
)

// maxBatch is how many work requests are posted, or completions polled, at a
// time. What a call to the device costs is little to each of so many.
const maxBatch = 16

// controlBatch is how many of a batch are kept for control messages, so that
// neither kind waits for the other: some records, a link credit and a probe.
const controlBatch = 4

// burst is how many messages a stream sends in a row, without an answer, before it counts as
// one that sends bulk.
const burst = 3

// chunkLen is how many bytes are worth a work request of their own, and
// messageLen how many one may carry.
func (s *Stream) chunkLen() int { return min(worthwhile, s.messageLen()) }
func (s *Stream) messageLen() int {
	return min(maxMessage, s.peer.Size/4, s.link.send.staging.ring.Size()/4)
}

// sharesMemory reports whether a post itself puts the bytes where the peer reads
// them.
func (l *Link) sharesMemory() bool { return l.limits.Inline >= worthwhile }

// mayPost reports whether work requests may be posted: the link has a queue pair, and no other
// goroutine is posting to it. Called with mu held.
func (l *Link) mayPost() bool { return l.stage == up && !l.send.posting }

// maySendNew reports whether what has not been sent yet may be: not before all that is to be
// sent again, since the peer takes the messages of a link in order. Called with mu held.
func (l *Link) maySendNew() bool { return l.mayPost() && l.unacked.again == 0 }

// sendNow has unlock send the bytes inline, without a copy to the staging memory, if no other bytes
// have to go before them, not those of other streams either that the engine has yet to send.
// It returns whether it has. Called with mu held.
func (s *Stream) sendNow(g gather) bool {
	l := s.link
	q := &l.send
	othersFirst := s.ledger.Pending() > 0 || l.watch.called
	room := l.ledger.MaySendData() && q.slots.MaySend()
	if !l.maySendNew() || othersFirst || !room || s.next.Size > 0 {
		return false
	}
	s.ledger.Accept(g.n)
	s.cut = g.trim()
	l.pushData(s, g, nil)
	return true
}

// buildBatch puts into the batch what may be sent now. Called with mu held.
func (l *Link) buildBatch() {
	if !l.maySendNew() {
		l.pushAgain()
		return
	}
	if l.send.withData.len() > 0 {
		l.pushStreams()
	}
	if l.send.withRecords.len() > 0 || l.maySayGoAway() {
		l.pushRecords()
	}
	if l.ledger.CreditDue() && l.send.control.credits.free(&l.send.slots) && l.repost() {
		l.stats.ControlSent++
		l.pushMessage(&l.send.control.credits, l.ledger.SendCredit(), nil)
	}
	if (l.alive.due || l.send.stuck()) && l.send.control.probes.free(&l.send.slots) {
		l.pushProbe()
	}
}

// queue has the stream's data sent in its turn. Called with mu held.
func (s *Stream) queue() {
	if !s.inDataLine {
		s.inDataLine = true
		s.link.send.withData.push(s)
	}
}

// conversing reports whether the stream has had an answer lately.
func (s *Stream) conversing() bool { return s.sentSinceReceive < burst }

// isBulk reports whether a message of n bytes of the stream counts as bulk.
func (s *Stream) isBulk(n int) bool { return !s.conversing() && n > copyLocked }

// pushStreams adds data messages, one of each stream in turn, whether the next to run out
// are places in the batch, slots, or the peer's receives. Bulk loses its turn while as much
// of it is under way as may be. Called with mu held.
func (l *Link) pushStreams() {
	q := &l.send
	for waiting := 0; waiting < q.withData.len() && len(q.batch) < maxBatch-controlBatch; {
		if !l.ledger.MaySendData() || !q.slots.MaySend() {
			return
		}
		s := q.withData.pop()
		n, newRing := s.ledger.Next()
		n = min(n, s.messageLen())
		if s.isBulk(n) {
			n = min(n, q.window.limit/4)
		}
		switch {
		case n == 0 && !newRing:
			s.inDataLine = false
			continue
		case s.isBulk(n) && !q.window.maySend(n):
			q.withData.push(s)
			waiting++
			continue
		case n == 0:
			l.pushData(s, gather{}, nil)
		default:
			p, memory := s.pending.next(&q.staging, n)
			l.pushData(s, whole(p), memory)
		}
		waiting = 0
		q.withData.push(s)
	}
}

// pushData adds a data message of a stream to the batch: bytes of registered memory, or
// of the caller's, inline. Called with mu held.
func (l *Link) pushData(s *Stream, g gather, memory fabric.Memory) {
	q := &l.send
	var flags wire.DataFlags
	_, newRing := s.ledger.Next()
	if newRing {
		flags = wire.NewRing
		s.peer, s.next = s.next, wire.RingPlace{}
	}
	at := s.peer.Addr + uint64(ring.Offset(s.ledger.Sent(), s.peer.Size))
	s.ledger.Send(g.n)
	l.ledger.SendData()
	if s.ledger.Pending() == 0 && s.ledger.Space() == 0 && !s.ledger.Closing() {
		flags |= wire.FullRing
	}
	if memory != nil {
		q.unsignaledBytes += g.n
	}
	if s.isBulk(g.n) {
		q.window.posted += uint64(g.n)
	}
	timed := s.conversing() && g.n < worthwhile && q.window.toTime()
	signaled := timed || l.mustSignal(s)
	s.sentSinceReceive++
	s.stats.MessagesSent++
	l.stats.MessagesSent++
	l.stats.BytesSent += uint64(g.n)
	wr := l.push(signaled)
	wr.Op, wr.Imm = fabric.WriteImm, wire.DataImmediate(s.number, flags)
	wr.Data, wr.Rest, wr.Memory = g.first, g.rest, memory
	wr.RemoteAddr, wr.RKey = at, s.peer.RKey
	if memory != nil {
		l.retain(wr, s.pending.first(&q.staging))
		s.pending.posted(&q.staging, g.n, wr.ID+1)
	} else {
		l.retain(wr, nil)
	}
	if signaled {
		q.window.signaled(wr.ID+1, timed)
	}
	q.batchBytes += g.n
	if newRing {
		s.wake() // the new ring has more room
	}
	if s.ledger.Pending() == 0 {
		s.changed() // perhaps it ends here
	}
}

// mustSignal reports whether the next work request, with data of the stream, is to be signaled: when
// something waits, for a slot, for staging memory or a buffer, be it one whose own bytes have been
// sent and that is held by chunks before it; and before anything could wait. Called with mu held.
func (l *Link) mustSignal(s *Stream) bool {
	q := &l.send
	waits := s.ledger.Pending() > 0 || s.ledger.Closing() || q.staging.lent > 0 || q.stagingLine.len() > 0
	quarterOfSlots := q.slots.Unsignaled()+1 >= q.slots.Depth()/4
	quarterOfBytes := q.unsignaledBytes >= min(q.staging.ring.Size(), q.window.limit)/4
	return waits || quarterOfSlots || quarterOfBytes
}
