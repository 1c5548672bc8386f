package link

import (
	"fmt"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// maxPolls is how many batches of completions are taken at a time, so that no
// peer can have the lock held by sending without end.
const maxPolls = 4

// receiveQueue is what a link receives with. Guarded by Link.mu.
type receiveQueue struct {
	broken      bool                        // the peer has broken the protocol: what follows is not decoded
	messages    uint64                      // ever received, of any kind
	touched     []*Stream                   // whose calls may have become ready
	completions [maxBatch]fabric.Completion // scratch of pollCompletions
}

// pollCompletions takes what has completed, up to a bound. It returns whether anything had
// completed. Called with mu held.
func (l *Link) pollCompletions() bool {
	if l.stage >= seeking {
		return false
	}
	l.watch.polls++
	for polls := 1; ; polls++ {
		n, err := l.ep.Poll(l.receive.completions[:])
		if err != nil {
			l.fail(lost(err))
			l.qp.posted = 0 // a queue that cannot be polled gives nothing back
		} else if n == 0 && polls == 1 && !l.qp.noMoreCompletions {
			return false
		}
		l.completed(l.receive.completions[:n])
		if n < maxBatch {
			if l.qp.noMoreCompletions {
				l.qp.posted = 0
			}
			break
		}
		if polls == maxPolls {
			l.watch.called = true
			break
		}
	}
	return true
}

// completed takes a batch of completions. Receives of control messages are posted again
// at once, for the peer may always send as many; those of data just before they are
// acknowledged, for until then it may not. Called with mu held.
func (l *Link) completed(batch []fabric.Completion) {
	control := 0
	for i := range batch {
		wc := &batch[i]
		if wc.Recv {
			l.qp.posted--
		}
		switch {
		case wc.Status == fabric.OK && !wc.Recv:
			l.alive.activity++
			l.sendCompleted(wc.ID)
		case wc.Status == fabric.OK:
			l.alive.activity++
			if wc.Op == fabric.WriteImm {
				l.qp.spent++
			} else {
				control++
			}
			l.received(wc)
		case wc.Status == fabric.Flushed:
			l.flushed()
		default:
			l.fail(failed(wc))
		}
	}
	l.postReceives(control)
}

// repost posts again the receives that data has completed, and reports whether they are
// posted. Called with mu held.
func (l *Link) repost() bool {
	n := l.qp.spent
	l.qp.spent = 0
	return l.postReceives(n)
}

// postReceives posts n receives, and reports whether they are posted. It posts none on a
// queue pair that has failed. Called with mu held.
func (l *Link) postReceives(n int) bool {
	if n == 0 || l.qp.state != qpReady { // not every device flushes what is posted in ERR
		return l.cause == nil
	}
	if err := l.ep.PostRecv(n); err != nil {
		l.fail(lost(err))
		return false
	}
	l.qp.posted += n
	return true
}

// flushed handles a flushed work request: the queue pair is in ERR. The reason comes with a
// request that has failed, or from Wait, which returns after Disconnect; if neither comes
// within drainTime, drainTick sets one. Called with mu held.
func (l *Link) flushed() {
	if l.qp.state != qpReady {
		return
	}
	l.limitDrain()
	l.moveToError()
}

// received takes a message of the peer's. Called with mu held.
func (l *Link) received(wc *fabric.Completion) {
	if l.receive.broken {
		return
	}
	l.receive.messages++
	var err error
	if wc.Op == fabric.WriteImm {
		err = l.receivedData(wc)
	} else {
		err = l.receivedSend(wc.Data)
	}
	if err != nil {
		l.refuseToTake(err)
	}
}

// refuseToTake ends the link for what the peer has sent. Called with mu held.
func (l *Link) refuseToTake(err error) {
	l.receive.broken = true
	if disconnected(l.cause) {
		l.cause = nil // the breach is the reason, though the peer has disconnected too
	}
	l.fail(notTaken(err))
}

// stream is the stream of a number. Called with mu held.
func (l *Link) stream(number uint32) (*Stream, error) {
	if int(number) < len(l.streams.byNumber) && l.streams.byNumber[number] != nil {
		return l.streams.byNumber[number], nil
	}
	return nil, fmt.Errorf("there is no stream %d", number)
}

// receivedData takes a data message. An error, here and below, says how the peer breaks
// the protocol. Called with mu held.
func (l *Link) receivedData(wc *fabric.Completion) error {
	number, flags, err := wire.DecodeDataImmediate(wc.Imm)
	if err != nil {
		return err
	}
	s, err := l.stream(number)
	if err != nil {
		return fmt.Errorf("%d bytes of data: %w", wc.Len, err)
	}
	if err := l.ledger.ReceiveData(); err != nil {
		return err
	}
	newRing := flags&wire.NewRing != 0
	if err := s.ledger.Receive(wc.Len, newRing); err != nil {
		return err
	}
	l.stats.MessagesReceived++
	l.stats.BytesReceived += uint64(wc.Len)
	s.stats.MessagesReceived++
	s.sentSinceReceive = 0
	if newRing {
		s.inbox.renew()
		s.changed()
	}
	s.useRing()
	if flags&wire.FullRing != 0 && s.use == reading {
		s.filled()
	}
	if s.use == reading {
		s.link.watch.served = true
		s.touch()
		return nil
	}
	if s.use == orphaned && wc.Len > 0 {
		s.ledger.Reset() // it will never be read
		s.closing.resets = true
	}
	s.discard()
	s.changed()
	return nil
}

// receivedSend takes a SEND: what the peer acknowledges, and records. Called with mu
// held.
func (l *Link) receivedSend(b []byte) error {
	h, records, err := wire.DecodeHeader(b)
	if err != nil {
		return err
	}
	acked := credit.Totals{Data: h.Data, Records: h.Records}
	defer l.trimAcknowledged()
	if len(records) == 0 {
		return l.ledger.ReceiveCredit(acked)
	}
	if err := l.ledger.ReceiveRecords(acked); err != nil {
		return err
	}
	for ; len(records) > 0; records = records[wire.RecordSize:] {
		r, err := wire.DecodeRecord(records[:wire.RecordSize])
		if err == nil {
			err = l.receivedRecord(&r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// receivedRecord takes a record, of the link or of one of its streams. Called with mu
// held.
func (l *Link) receivedRecord(r *wire.Record) error {
	switch r.Type {
	case credit.GoAwayRecord:
		return l.receivedGoAway()
	case credit.OpenRecord:
		return l.receivedOpen(r)
	}
	s, err := l.stream(r.Stream)
	if err == nil {
		err = s.receivedRecord(r)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", r.Type, err)
	}
	return nil
}

// receivedRecord takes a record about the stream. Called with mu held.
func (s *Stream) receivedRecord(r *wire.Record) error {
	if r.Type == credit.RingRecord && s.link.lacksReach(r.Ring) != nil {
		return s.awaitRing(*r)
	}
	value := r.Position
	if r.Ring.Size > 0 {
		value = uint64(r.Ring.Size)
	}
	if err := s.ledger.ReceiveRecord(r.Type, value); err != nil {
		return err
	}
	switch r.Type {
	case credit.AcceptRecord:
		s.peer = r.Ring
		s.link.streams.answered()
		s.awaitReach(&s.link.memory.line.beginning, r.Ring, func() error {
			s.wake()
			return nil
		})
	case credit.RefuseRecord:
		s.refusal = r.Reason
		s.link.streams.answered()
	case credit.RingRecord:
		s.next = r.Ring
		s.queue()
	case credit.CreditRecord:
		s.link.watch.served = true
		s.stats.CreditsReceived++
	case credit.ResetRecord:
		s.closing.late = r.Late
		s.dropPending()
	}
	s.touch()
	s.changed()
	return nil
}

// touch has unlock wake the stream's calls if they are ready. Called with mu held.
func (s *Stream) touch() {
	if !s.touched {
		s.touched = true
		s.link.receive.touched = append(s.link.receive.touched, s)
	}
}

// wakeTouched wakes the calls that are ready on the streams that have been touched.
// Called with mu held.
func (l *Link) wakeTouched() {
	for i, s := range l.receive.touched {
		l.receive.touched[i] = nil
		s.touched = false
		s.wake()
	}
	l.receive.touched = l.receive.touched[:0]
}
