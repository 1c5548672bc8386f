package link

import (
	"math"
	"time"

	"github.com/ringnet/ringnet/credit"
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

// maxRounds is how many batches a call posts before it leaves what more there
// is, most of it for others, to the engine.
const maxRounds = 4

// burst is how many messages of a stream leave one by one, unless something
// arrives meanwhile. What is written after them goes together with what follows
// until they have completed.
const burst = 3

// sendQueue is what a link has to send and has sent. Guarded by Link.mu.
type sendQueue struct {
	slots   credit.Slots
	staging staging
	buffers map[*Buffer]struct{} // of this link's that are not closed
	streams queue[*Stream]       // with data to send, that are in a conversation
	busy    queue[*Stream]       // with data to send, others
	talkers queue[*Stream]       // with records to send
	short   queue[*Stream]       // whose Writes wait for staging memory, or have
	ending  []*Stream            // whose Close waits for the completion of its end

	batch   []fabric.WorkRequest
	bytes   int  // in batch
	posting bool // somebody is in PostSend, without mu, and will look again after it
	called  bool // the engine has been asked to send
	quiet   int  // bytes of staging posted since the last signaled work request

	records controlSends // with records
	credits controlSends // with link credit alone
	probes  controlSends // that ask for a sign of life
	target  wire.RingPlace
	bulk    bulk

	// How long a post takes, at best of the first timedPosts that let go of mu.
	timed    int
	postTime time.Duration
}

// controlSends are control messages of one kind, each with a buffer that is used
// again when its work request has completed.
type controlSends struct {
	buffers []byte   // wire.MessageSize bytes for each
	after   []uint64 // of each: work requests that have to complete before
	next    int
}

// free says whether the next buffer may be used.
func (c *controlSends) free(slots *credit.Slots) bool { return slots.Completed(c.after[c.next]) }

// take returns the next buffer, for the work request before after.
func (c *controlSends) take(after uint64) []byte {
	i := c.next
	c.after[i] = after
	c.next = (i + 1) % len(c.after)
	return c.buffers[i*wire.MessageSize:][:wire.MessageSize]
}

// ControlMemory is the memory, in bytes, for control messages, behind the staging memory.
const ControlMemory = (credit.RecordWindow + 1) * wire.MessageSize

func newSendQueue(memory fabric.Memory, size, depth int) sendQueue {
	b := memory.Bytes()
	control := b[size : size+ControlMemory]
	return sendQueue{
		slots:    credit.NewSlots(depth, credit.LinkControlSends),
		staging:  staging{memory: memory, ring: ring.New(b[:size])},
		buffers:  make(map[*Buffer]struct{}),
		batch:    make([]fabric.WorkRequest, 0, maxBatch),
		records:  controlSends{buffers: control, after: make([]uint64, credit.RecordWindow)},
		credits:  controlSends{buffers: control[credit.RecordWindow*wire.MessageSize:], after: make([]uint64, 1)},
		probes:   controlSends{after: make([]uint64, 1)},
		postTime: math.MaxInt64,
		bulk:     bulk{limit: size, most: size},
	}
}

// A device that takes longer over a little than it takes to wake the engine is
// slow: soft-RoCE does all the work of a transfer within the post, and has
// completed it then. Left to the engine, it goes on while the application writes
// more. A fabric that takes everything inline copies within the post what need
// not be copied before it.
const (
	slowPost   = 5 * time.Microsecond
	timedPosts = 8
)

func (q *sendQueue) slow() bool { return q.timed == timedPosts && q.postTime > slowPost }

// chunkLen is how many bytes are worth a work request of their own, and
// messageLen how many one may carry.
func (s *Stream) chunkLen() int { return min(worthwhile, s.messageLen()) }
func (s *Stream) messageLen() int {
	return min(maxMessage, s.peer.Size/4, s.link.send.staging.ring.Size()/4)
}

// leavesToEngine says whether the next bytes are the engine's to send.
func (s *Stream) leavesToEngine() bool {
	l := s.link
	return s.streak >= burst && l.send.slow() && !l.sharesMemory()
}

// sharesMemory says whether a post itself puts the bytes where the peer reads
// them.
func (l *Link) sharesMemory() bool { return l.limits.Inline >= worthwhile }

// callEngine has the engine send what there is to send. Called with mu held.
func (l *Link) callEngine() {
	if !l.send.called {
		l.send.called = true
		l.ep.Wake()
	}
}

// sendNow sends the bytes inline, without a copy to the staging memory, if nothing
// is in the way and nothing would be won by waiting. Called with mu held, which it
// may release to post.
func (s *Stream) sendNow(g gather) bool {
	l := s.link
	q := &l.send
	if q.posting || l.stage != up || s.ledger.Pending() > 0 || q.streams.len() > 0 || q.busy.len() > 0 && !s.conversing() ||
		!l.ledger.MaySendData() || !q.slots.MaySend() || s.next.Size > 0 ||
		!q.slots.Completed(s.ahead) || g.n <= copyLocked && s.gathers() {
		return false
	}
	s.ledger.Accept(g.n)
	last := g.trim()
	l.pushData(s, g, nil)
	released := l.post()
	g.untrim(last)
	q.batch[:1][0].Data, q.batch[:1][0].Rest = nil, nil // they are the caller's
	if released {
		l.trySend() // what has come meanwhile
	}
	return true
}

// trySend posts whatever there is to send and may be sent now, unless somebody
// is posting, who will do so. Called with mu held, which it may release while
// the device takes work requests. Beyond maxRounds the engine goes on.
func (l *Link) trySend() {
	if l.send.posting {
		return
	}
	for round := 0; l.stage == up; round++ {
		if round == maxRounds {
			l.callEngine()
			return
		}
		if l.buildBatch(); len(l.send.batch) == 0 {
			return
		}
		l.post()
	}
}

// buildBatch puts into the batch what may be sent now. Called with mu held.
func (l *Link) buildBatch() {
	if l.log.again > 0 {
		l.pushAgain()
		return
	}
	l.pushStreams()
	l.pushRecords()
	if l.ledger.CreditDue() && l.send.credits.free(&l.send.slots) && l.repost() {
		l.stats.CreditsSent++
		l.pushMessage(&l.send.credits, l.ledger.SendCredit(), nil)
	}
	if (l.alive.due || l.send.stuck()) && l.send.probes.free(&l.send.slots) {
		l.pushProbe()
	}
}

// stuck says whether a Write waits for staging memory, and what is under way will
// free none, since none of it is signaled: a chunk may be held by the last of several
// messages that carried it, and holds all chunks behind it.
func (q *sendQueue) stuck() bool {
	return q.short.len() > 0 && q.slots.Outstanding() > 0 && q.slots.Unsignaled() == q.slots.Outstanding()
}

// queue has the stream's data sent in its turn. Called with mu held.
func (s *Stream) queue() {
	if !s.sending {
		s.sending = true
		s.link.send.enqueue(s)
	}
}

// enqueue puts a stream into the queue where it belongs.
func (q *sendQueue) enqueue(s *Stream) {
	if s.conversing() {
		q.streams.push(s)
	} else {
		q.busy.push(s)
	}
}

// gathers says whether a little data of the stream waits for more, since something
// is under way that brings us here again: the completion of data that it sent
// before, or, where that says nothing of the peer, the credit for what a stream has
// sent that goes on without an answer, faster than the peer takes it.
func (s *Stream) gathers() bool {
	q := &s.link.send
	return !q.slots.Completed(s.ahead) || !s.conversing() && s.link.ledger.CreditComing()
}

// conversing says whether the stream has had an answer lately.
func (s *Stream) conversing() bool { return s.streak < burst }

// pushStreams adds data messages: those of conversations, and then bulk, as much
// as may be under way, for which a place is left.
func (l *Link) pushStreams() {
	l.pushQueue(&l.send.streams, maxBatch-controlBatch-1)
	l.pushQueue(&l.send.busy, maxBatch-controlBatch)
}

// pushQueue adds data messages, one of each stream of a queue in turn, until the
// batch has most. Smart batching: a little waits while data of its stream is under
// way whose completion will bring us here again, and goes with what has been
// written by then.
func (l *Link) pushQueue(streams *queue[*Stream], most int) {
	q := &l.send
	for waiting := 0; waiting < streams.len() && len(q.batch) < most; {
		if !l.ledger.MaySendData() || !q.slots.MaySend() {
			return
		}
		s := streams.front()
		n, newRing := s.ledger.Next()
		n = min(n, s.messageLen())
		if streams == &q.busy {
			if n = min(n, q.bulk.limit/4); !q.bulk.maySend(n) {
				return
			}
		}
		streams.pop()
		switch {
		case n == 0 && !newRing:
			s.sending = false
			continue
		case n < s.chunkLen() && s.gathers() && !s.ledger.Closing():
			streams.push(s)
			waiting++
			continue
		case n == 0:
			l.pushData(s, gather{}, nil)
		default:
			p, memory := s.pending.next(&q.staging, n)
			l.pushData(s, whole(p), memory)
		}
		waiting = 0
		q.enqueue(s)
	}
}

// pushData adds a data message of a stream to the batch: bytes of registered memory,
// or of the caller's, inline.
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
		q.quiet += g.n
	}
	q.bulk.posted += uint64(g.n)
	timed := s.conversing() && g.n < worthwhile && q.bulk.toTime()
	// Signal before anything could wait: for a slot, for staging memory or a buffer, be it
	// one whose own bytes have been sent and that is held by chunks before it,
	// or, after a burst, for the end of what is under way.
	signaled := s.ledger.Pending() > 0 || q.staging.lent > 0 || s.ledger.Closing() || q.short.len() > 0 ||
		q.slots.Unsignaled()+1 >= burst && s.streak > 0 ||
		q.slots.Unsignaled()+1 >= q.slots.Depth()/4 ||
		q.quiet >= min(q.staging.ring.Size(), q.bulk.limit)/4 || timed
	s.streak++
	s.stats.MessagesSent++
	l.stats.MessagesSent++
	wr := l.push(signaled)
	wr.Op, wr.Imm = fabric.WriteImm, wire.DataImmediate(s.number, flags)
	wr.Data, wr.Rest, wr.Memory = g.first, g.rest, memory
	wr.RemoteAddr, wr.RKey = at, s.peer.RKey
	if memory != nil {
		l.write(wr, s.pending.first(&q.staging))
		s.pending.posted(&q.staging, g.n, wr.ID+1)
	} else {
		l.write(wr, nil)
	}
	if signaled {
		s.ahead = wr.ID + 1
		q.bulk.signaled(wr.ID+1, timed)
	}
	q.bytes += g.n
	if newRing {
		s.wake() // there is more room
	}
	if s.ledger.Pending() == 0 {
		s.changed() // perhaps it ends here
	}
}

// pushRecords adds SENDs with the records that are due, those of the streams in
// turn.
func (l *Link) pushRecords() {
	q := &l.send
	for (q.talkers.len() > 0 || l.goAwayDue()) && len(q.batch) < maxBatch-2 && l.ledger.MaySendRecords() && q.records.free(&q.slots) {
		if !l.repost() { // before a stream takes what is due for said
			return
		}
		var records [wire.MaxRecords]wire.Record
		n := 0
		after := q.slots.Next() + 1
		for ; n < len(records) && q.talkers.len() > 0; n++ {
			r, ok := l.nextRecord(after)
			if !ok {
				break
			}
			records[n] = r
		}
		if n < len(records) && l.goAwayDue() {
			l.leaving.due, l.leaving.sent = false, after
			records[n] = wire.Record{Type: wire.GoAwayRecord}
			n++
		}
		if n == 0 {
			return
		}
		l.stats.RecordsSent++
		l.pushMessage(&q.records, l.ledger.SendRecords(), records[:n])
	}
}

// goAwayDue says whether to tell the peer that no stream will begin any more.
func (l *Link) goAwayDue() bool { return l.leaving.due && l.live.Load() == 0 }

// nextRecord is the next record that is due of any stream.
func (l *Link) nextRecord(after uint64) (wire.Record, bool) {
	q := &l.send
	for q.talkers.len() > 0 {
		s := q.talkers.pop()
		s.talking = false
		due := s.ledger.Due()
		if due == credit.NoRecord {
			continue // it may wait for data to be sent first
		}
		r := wire.Record{Type: wire.RecordType(due), Stream: s.number, Ring: s.offer(due)}
		value := s.ledger.SendRecord(due)
		switch due {
		case credit.OpenRecord:
			r.Port = s.local.Port()
		case credit.CreditRecord:
			s.stats.CreditsSent++
			r.Position = value
			s.credited()
		case credit.FinRecord, credit.ResetRecord:
			r.Position = value
			r.Late = due == credit.ResetRecord && s.use == disowned && !s.unread
			if s.end == 0 {
				q.ending = append(q.ending, s)
			}
			s.end = after
		case credit.AcceptRecord:
			l.unanswered--
			s.wake() // its owner may have it already, and wait to Write
		case credit.RefuseRecord:
			l.unanswered--
			r.Reason = s.refusal
		}
		s.changed()
		return r, true
	}
	return wire.Record{}, false
}

// offer is the ring that a record tells of.
func (s *Stream) offer(r credit.Record) wire.RingPlace {
	switch r {
	case credit.OpenRecord, credit.AcceptRecord:
		return s.inbox.held.place()
	case credit.RingRecord:
		return s.inbox.offered.place()
	}
	return wire.RingPlace{}
}

// pushMessage adds a SEND to the batch: what this side acknowledges, and
// records.
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
		l.write(wr, nil)
	}
}

// pushProbe adds a write of nothing, which only the peer's device sees.
func (l *Link) pushProbe() {
	l.alive.due = false
	l.alive.probed = time.Now()
	l.stats.Probes++
	wr := l.push(true)
	wr.Op, wr.RemoteAddr, wr.RKey = fabric.Write, l.send.target.Addr, l.send.target.RKey
	l.send.probes.after[0] = wr.ID + 1
}

// push adds a work request to the batch, for the caller to fill in.
func (l *Link) push(signaled bool) *fabric.WorkRequest {
	q := &l.send
	q.batch = q.batch[:len(q.batch)+1]
	wr := &q.batch[len(q.batch)-1]
	*wr = fabric.WorkRequest{ID: q.slots.Post(), Signaled: signaled}
	if signaled {
		q.slots.Signal()
		q.quiet = 0
		l.stats.Signaled++
	}
	l.stats.WorkRequests++
	return wr
}

// post hands the batch to the device. It releases mu meanwhile, for that may
// take long: a device that copies, or that is software, does then what it has to
// do. Letting go would take longer than a little takes a device that is not slow.
func (l *Link) post() (released bool) {
	q := &l.send
	timed := q.timed < timedPosts
	if !timed && q.bytes <= copyLocked && !q.slow() {
		l.submitted(l.ep.PostSend(q.batch))
		return false
	}
	var start time.Time
	if timed {
		start = time.Now()
	}
	q.posting = true
	l.mu.Unlock()
	err := l.ep.PostSend(q.batch)
	var took time.Duration
	if timed {
		took = time.Since(start)
	}
	l.mu.Lock()
	q.posting = false
	if timed {
		q.timed++
		q.postTime = min(q.postTime, took)
	}
	l.submitted(err)
	return true
}

// submitted ends what PostSend has begun. Called with mu held.
func (l *Link) submitted(err error) {
	l.send.batch, l.send.bytes = l.send.batch[:0], 0
	if err != nil {
		l.fail(lost(err))
	}
	if l.cause != nil || l.receive.flushing {
		l.moveToError()
		l.settle()
		l.ep.Wake() // the engine, which may have waited for this alone
	}
}

// sendCompleted takes back what the work request, and those before it, held.
func (l *Link) sendCompleted(id uint64) {
	q := &l.send
	q.slots.Complete(id)
	q.bulk.complete(&q.slots)
	l.freeStaging()
	for i := 0; i < len(q.ending); {
		if s := q.ending[i]; s.delivered() {
			q.ending[i] = q.ending[len(q.ending)-1]
			q.ending = q.ending[:len(q.ending)-1]
			s.touch()
			continue
		}
		i++
	}
}
