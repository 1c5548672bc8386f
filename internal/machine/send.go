package machine

import (
	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

// A work request carries maxMessage bytes at most. As many as Worthwhile do not
// wait for more: they take some microseconds at 100 Gb/s, so that the cost of a
// request vanishes, and the peer can copy them while the next are on their way.
const (
	maxMessage = 256 << 10
	Worthwhile = 64 << 10
)

// MaxBatch is how many work requests are posted, or completions polled, at a
// time. What a call to the device costs is little to each of so many.
const MaxBatch = 16

// controlBatch is how many of a batch are kept for control messages, so that
// neither kind waits for the other: some records, a link credit and a probe.
const controlBatch = 4

// Burst is how many messages a stream sends in a row, without an answer, before it counts as
// one that sends bulk.
const Burst = 3

// little is how many bytes are no bulk, whoever sends them.
const little = 1 << 10

// sent is how many work requests have completed when something has that was sent; 0: it was not.
type sent uint64

// completed reports whether it has.
func (n sent) completed(slots *credit.Slots) bool { return n > 0 && slots.Completed(uint64(n)) }

// sendQueue is what a link has to send and has sent.
type sendQueue struct {
	slots   credit.Slots
	staging staging
	loans   map[*Loan]struct{} // that are with the device
	waiting
	control control
	window  sendWindow

	batch           []fabric.WorkRequest
	records         [wire.MaxRecords]wire.Record // of the message that pushRecords makes; no stack has to grow for them
	batchBytes      int                          // in batch
	signal          bool                         // the last of the batch is to be signaled when it is posted
	posting         bool                         // the batch is being posted
	unsignaledBytes int                          // of staging posted since the last signaled work request
}

// waiting is which streams wait for something of the send queue. outbox has whether a
// stream is in a line.
type waiting struct {
	withData     queue[*Stream] // with data to send
	withRecords  queue[*Stream] // with records to send
	stagingLine  queue[*Stream] // whose Writes wait for staging memory, or have
	awaitingEnds []*Stream      // whose Close waits for the completion of its end
}

func newSendQueue(memory fabric.Memory, cfg *Config) sendQueue {
	return sendQueue{
		slots:   credit.NewSlots(cfg.SendQueue, credit.LinkControlSends),
		staging: newStaging(memory, cfg.FirstStaging),
		loans:   make(map[*Loan]struct{}),
		batch:   make([]fabric.WorkRequest, 0, MaxBatch),
		control: newControl(memory, cfg.FirstStaging),
		window:  sendWindow{most: cfg.SendBuffer},
	}
}

// stuck reports whether a Write waits for staging memory, and nothing under way will free any,
// because none of it is signaled. A chunk is free when the last message with its bytes has
// completed, and those behind it are not free before.
func (q *sendQueue) stuck() bool {
	return q.stagingLine.Len() > 0 && q.slots.Outstanding() > 0 && q.slots.Unsignaled() == q.slots.Outstanding()
}

// mayPost reports whether work requests may be posted: the link has a queue pair, and no batch is being posted.
func (l *Link) mayPost() bool { return l.stage == Up && !l.send.posting }

// maySendNew reports whether what has not been sent yet may be: not before all that is to be
// sent again, since the peer takes the messages of a link in order.
func (l *Link) maySendNew() bool { return l.mayPost() && l.unacked.again == 0 }

// Waits reports whether something waits to be sent, or a Close for that.
func (l *Link) Waits() bool {
	return l.send.withData.Len() > 0 || l.send.withRecords.Len() > 0 || len(l.send.awaitingEnds) > 0
}

// HasBatch puts what may be sent into the batch, and reports whether that is to be posted.
func (l *Link) HasBatch() bool {
	if l.mayPost() {
		l.buildBatch()
	}
	if len(l.send.batch) == 0 || l.send.posting {
		return false
	}
	if l.send.signal || l.send.slotsShort() {
		l.signal()
	}
	return true
}

// slotsShort reports whether a quarter of the slots has no completion to come, or, where messages wait for slots, a few.
func (q *sendQueue) slotsShort() bool {
	few := q.slots.Depth() / 4
	if !q.slots.MaySend() {
		few /= 4
	}
	return q.slots.Unsignaled() >= few
}

// signal has the last of the batch signaled: its completion is that of all before it, too.
func (l *Link) signal() {
	q := &l.send
	wr := &q.batch[len(q.batch)-1]
	q.signal = false
	if wr.Signaled {
		return
	}
	wr.Signaled = true
	q.slots.Signal()
	q.window.signaled(sent(wr.ID + 1))
	q.unsignaledBytes = 0
	l.stats.Signaled++
}

// Batch is the work requests to be posted, all or none, which carry so many bytes.
func (l *Link) Batch() (batch []fabric.WorkRequest, bytes int) {
	return l.send.batch, l.send.batchBytes
}

// Post begins to post the batch: nothing is added to it until Posted.
func (l *Link) Post() { l.send.posting = true }

// Posted takes the result of posting the batch, and reports whether more could not be put in.
func (l *Link) Posted(err error) (full bool) {
	q := &l.send
	q.posting = false
	full = len(q.batch) >= MaxBatch-controlBatch
	for i := range q.batch {
		q.batch[i].Data, q.batch[i].Rest = nil, nil // they may be a caller's
	}
	q.batch, q.batchBytes = q.batch[:0], 0
	if err != nil {
		l.Fail(Lost(err))
	}
	return full
}

// push adds a work request to the batch, for the caller to fill in.
func (l *Link) push(id uint64) *fabric.WorkRequest {
	q := &l.send
	q.batch = q.batch[:len(q.batch)+1]
	wr := &q.batch[len(q.batch)-1]
	*wr = fabric.WorkRequest{ID: id}
	l.stats.WorkRequests++
	return wr
}

// sendCompleted frees the slots and the memory that the work request, and those before it,
// took.
func (l *Link) sendCompleted(id uint64) {
	q := &l.send
	q.slots.Complete(id)
	l.windowCompleted()
	l.freeStaging()
	for i := 0; i < len(q.awaitingEnds); {
		if s := q.awaitingEnds[i]; s.delivered() {
			q.awaitingEnds[i] = q.awaitingEnds[len(q.awaitingEnds)-1]
			q.awaitingEnds = q.awaitingEnds[:len(q.awaitingEnds)-1]
			s.touch()
			continue
		}
		i++
	}
}

// buildBatch puts into the batch what may be sent now.
func (l *Link) buildBatch() {
	if !l.maySendNew() {
		l.pushAgain()
		return
	}
	if l.send.withData.Len() > 0 {
		l.pushStreams()
	}
	if l.send.withRecords.Len() > 0 || l.maySayGoAway() {
		l.pushRecords()
	}
	if l.ledger.CreditDue() && l.send.control.credits.free(&l.send.slots) {
		l.repost()
		l.stats.ControlSent++
		l.pushMessage(&l.send.control.credits, l.ledger.SendCredit(), nil)
	}
	if (l.alive.due || l.send.stuck()) && l.send.control.probes.free(&l.send.slots) {
		l.pushProbe()
	}
}

// chunkLen is how many bytes are worth a work request of their own, and
// messageLen how many one may carry.
func (s *Stream) chunkLen() int   { return min(Worthwhile, s.messageLen()) }
func (s *Stream) messageLen() int { return min(maxMessage, s.peer.Size/4) }

// NeedsRoom reports whether what has completed may make room for a Write, which finds none: behind bytes that wait
// there is another who looks.
func (s *Stream) NeedsRoom() bool {
	l := s.link
	return s.ledger.Pending() == 0 && !(l.send.slots.MaySend() && l.ledger.MaySendData())
}

// Room is how many of n bytes the peer has room for, one message at most, or why there
// will be none. Without a queue pair there is none for now.
func (s *Stream) Room(n int) (int, error) {
	if err := s.writeError(); err != nil {
		s.tell(err)
		return 0, err
	}
	if s.link.cause != nil {
		return 0, nil
	}
	n = min(n, s.ledger.Space(), s.chunkLen())
	return ring.Contiguous(s.ledger.Accepted(), n, s.peer.Size), nil
}

// MaySendNow reports whether n bytes of the Room may be sent inline, without a copy to the staging memory: if no
// other bytes have to go before them.
func (s *Stream) MaySendNow(n int) bool {
	l := s.link
	return n <= l.cfg.Inline && l.maySendNew() && len(l.send.batch) < MaxBatch-controlBatch && s.ledger.Pending() == 0 &&
		l.ledger.MaySendData() && l.send.slots.MaySend() && s.next.Size == 0
}

// SendNow has n bytes sent inline, in the next batch. They are the caller's again when that has been posted.
func (s *Stream) SendNow(n int, first []byte, rest [][]byte) {
	s.ledger.Accept(n)
	s.link.pushData(s, &payload{n: n, first: first, rest: rest})
	s.link.wakeStagingLine()
}

// accepted has the stream send n bytes more of registered memory.
func (s *Stream) accepted(n int) {
	s.ledger.Accept(n)
	s.queue()
}

// WriteReady reports whether a Write has nothing more to wait for.
func (s *Stream) WriteReady() bool {
	return s.writeError() != nil || s.link.cause == nil && s.ledger.Space() > 0 && s.line != inLine
}

// MayWrite reports whether a NewBuffer has nothing more to wait for, and tells why not if the wait is in vain.
func (s *Stream) MayWrite() (may bool, err error) {
	err = s.writeError()
	s.tell(err)
	return s.link.stage == Up, err
}

// queue has the stream's data sent in its turn.
func (s *Stream) queue() {
	if !s.inDataLine {
		s.inDataLine = true
		s.link.send.withData.push(s)
	}
}

// conversing reports whether the stream has had an answer lately.
func (s *Stream) conversing() bool { return s.sentSinceReceive < Burst }

// isBulk reports whether a message of n bytes of the stream counts as bulk.
func (s *Stream) isBulk(n int) bool { return !s.conversing() && n > little }

// pushStreams adds data messages, one of each stream in turn, whether the next to run out
// are places in the batch, slots, or the peer's receives. Bulk loses its turn while as much
// of it is under way as may be.
func (l *Link) pushStreams() {
	q := &l.send
	for waiting := 0; waiting < q.withData.Len() && len(q.batch) < MaxBatch-controlBatch; {
		if !l.ledger.MaySendData() || !q.slots.MaySend() {
			return
		}
		s := q.withData.Pop()
		n, newRing := s.ledger.Next()
		n = min(n, s.messageLen())
		if s.isBulk(n) {
			n = min(n, q.window.limit()/4)
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
			l.pushData(s, &payload{})
		default:
			p, memory := s.pending.next(&q.staging, n)
			l.pushData(s, &payload{n: len(p), first: p, memory: memory})
		}
		waiting = 0
		q.withData.push(s)
	}
}

// payload is n bytes of a data message: of registered memory, or of a caller's, inline.
type payload struct {
	n      int
	first  []byte
	rest   [][]byte
	memory fabric.Memory // nil: inline
}

// pushData adds a data message of a stream to the batch.
func (l *Link) pushData(s *Stream, p *payload) {
	q := &l.send
	var flags wire.DataFlags
	_, newRing := s.ledger.Next()
	if newRing {
		flags = wire.NewRing
		s.peer, s.next = s.next, wire.RingPlace{}
	}
	at := s.peer.Addr + uint64(ring.Offset(s.ledger.Sent(), s.peer.Size))
	s.ledger.Send(p.n)
	l.ledger.SendData()
	if s.ledger.Pending() == 0 && s.ledger.Space() == 0 && !s.ledger.Closing() {
		flags |= wire.FullRing
	}
	if p.memory != nil {
		q.unsignaledBytes += p.n
	}
	if s.isBulk(p.n) {
		q.window.posted += uint64(p.n)
	}
	if s.conversing() && p.n < Worthwhile {
		q.window.conversed()
	}
	q.signal = q.signal || p.memory != nil && s.holdsBuffer()
	s.sentSinceReceive++
	s.stats.MessagesSent++
	l.stats.MessagesSent++
	l.stats.BytesSent += uint64(p.n)
	wr := l.push(q.slots.Post())
	wr.Op, wr.Imm = fabric.WriteImm, wire.DataImmediate(s.number, flags)
	wr.Data, wr.Rest, wr.Memory = p.first, p.rest, p.memory
	wr.RemoteAddr, wr.RKey = at, s.peer.RKey
	if p.memory != nil {
		l.retain(wr, s.pending.first(&q.staging))
		s.pending.posted(&q.staging, p.n, sent(wr.ID+1))
	} else {
		l.retain(wr, nil)
	}
	if q.unsignaledBytes >= q.unsignaled() {
		l.signal()
	}
	q.batchBytes += p.n
	if newRing {
		s.touch() // the new ring has more room
	}
	if s.ledger.Pending() == 0 {
		s.ledgerChanged() // perhaps it ends here
	}
}

// holdsBuffer reports whether a buffer goes back to its owner with the next bytes of the stream, or once they are
// through, for they were staged before it.
func (s *Stream) holdsBuffer() bool {
	staging := &s.link.send.staging
	return staging.lent > 0 && s.pending.head <= staging.lastLent
}

// unsignaled is how many bytes may be under way without a completion to come, of staging memory and of the window, for
// nothing may wait for what is not signaled.
func (q *sendQueue) unsignaled() int { return min(q.window.unsignaled(), q.staging.in.ring.Size()/2) }
