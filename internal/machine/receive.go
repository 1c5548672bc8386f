package machine

import (
	"fmt"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// receiveQueue is what a link receives with.
type receiveQueue struct {
	broken   bool   // the peer has broken the protocol: what follows is not decoded
	messages uint64 // ever received, of any kind
}

// Messages is how many messages the peer has sent, and Activity how much has completed.
func (l *Link) Messages() uint64 { return l.receive.messages }
func (l *Link) Activity() uint64 { return l.alive.activity }

// Completed takes a batch of completions. Receives of control messages are posted again
// at once, for the peer may always send as many; those of data just before they are
// acknowledged, for until then it may not.
func (l *Link) Completed(batch []fabric.Completion) {
	control := 0
	for i := range batch {
		wc := &batch[i]
		if wc.Recv {
			l.qp.posted--
		}
		switch {
		case wc.Status == fabric.OK && !wc.Recv:
			l.alive.activity++
			if wc.ID == KeysID {
				l.send.slots.CompleteOther()
			} else {
				l.sendCompleted(wc.ID)
			}
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
			l.Fail(Failed(wc))
		}
	}
	l.postReceives(control)
}

// NoMoreCompletions reports whether what is not there when the queue has been polled empty will never come.
func (l *Link) NoMoreCompletions() bool { return l.qp.noMoreCompletions }

// Emptied notes that the completion queue has been polled empty, and NotPolled that it cannot be polled, so that it gives
// nothing back.
func (l *Link) Emptied() {
	if l.qp.noMoreCompletions {
		l.qp.posted, l.Receives = 0, 0
	}
}

func (l *Link) NotPolled(err error) {
	l.Fail(Lost(err))
	l.qp.posted, l.Receives = 0, 0
}

// repost posts again the receives that data has completed, before they are acknowledged.
func (l *Link) repost() {
	l.postReceives(l.qp.spent)
	l.qp.spent = 0
}

// postReceives has n receives posted, unless the queue pair has failed.
func (l *Link) postReceives(n int) {
	if l.qp.state == qpReady { // not every device flushes what is posted in ERR
		l.Receives += n
		l.qp.posted += n
	}
}

// TakeReceives is how many receives are to be posted now; NotReceiving says that they could not be.
func (l *Link) TakeReceives() int {
	n := l.Receives
	l.Receives = 0
	if l.qp.state != qpReady {
		l.qp.posted -= n
		return 0
	}
	return n
}

func (l *Link) NotReceiving(n int, err error) {
	l.qp.posted -= n
	l.Fail(Lost(err))
}

// flushed handles a flushed work request: the queue pair is in ERR. The reason comes with a
// request that has failed, or with a change of the connection; if neither comes
// within DrainTime, drainTick sets one.
func (l *Link) flushed() {
	if l.qp.state != qpReady {
		return
	}
	l.limitDrain()
	l.moveToError()
}

// received takes a message of the peer's.
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
		l.BrokenBy(err)
	}
}

// BrokenBy ends the link for what the peer has sent.
func (l *Link) BrokenBy(err error) {
	l.receive.broken = true
	if disconnected(l.cause) {
		l.cause = nil // the breach is the reason, though the peer has disconnected too
	}
	l.Fail(NotTaken(err))
}

// stream is the stream of a number.
func (l *Link) stream(number uint32) (*Stream, error) {
	if int(number) < len(l.streams.byNumber) && l.streams.byNumber[number] != nil {
		return l.streams.byNumber[number], nil
	}
	return nil, fmt.Errorf("there is no stream %d", number)
}

// receivedData takes a data message. An error, here and below, says how the peer breaks
// the protocol.
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
		s.ledgerChanged()
	}
	s.useRing()
	if flags&wire.FullRing != 0 && s.use == Reading {
		s.filled()
	}
	if s.use == Reading {
		l.Served = true
		s.touch()
		return nil
	}
	if s.use == Orphaned && wc.Len > 0 {
		s.ledger.Reset() // it will never be read
		s.closing.resets = true
	}
	s.discard()
	s.ledgerChanged()
	return nil
}

// receivedSend takes a SEND: what the peer acknowledges, and records.
func (l *Link) receivedSend(b []byte) error {
	err := l.receivedRecords(b)
	if err == nil {
		err = l.trimAcknowledged()
	}
	return err
}

// receivedRecords is receivedSend, but for what need not be sent again.
func (l *Link) receivedRecords(b []byte) error {
	h, records, err := wire.DecodeHeader(b)
	if err != nil {
		return err
	}
	acked := credit.Totals{Data: h.Data, Records: h.Records}
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

// receivedRecord takes a record, of the link or of one of its streams.
func (l *Link) receivedRecord(r *wire.Record) error {
	switch r.Type {
	case credit.GoAwayRecord:
		return l.receivedGoAway()
	case credit.OpenRecord:
		return l.receivedOpen(r)
	}
	s, err := l.stream(r.Stream)
	if err == nil && r.Type == credit.RingRecord {
		err = s.receivedRing(r)
	} else if err == nil {
		err = s.receivedRecord(r)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", r.Type, err)
	}
	return nil
}

// receivedRecord takes a record about the stream.
func (s *Stream) receivedRecord(r *wire.Record) error {
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
		s.link.answered()
		if !s.link.cfg.Reaches(r.Ring) {
			s.await(r)
		}
	case credit.RefuseRecord:
		s.refusal = r.Reason
		s.link.answered()
	case credit.RingRecord:
		s.next = r.Ring
		s.queue()
	case credit.CreditRecord:
		s.link.Served = true
		s.stats.CreditsReceived++
	case credit.ResetRecord:
		s.closing.late = r.Late
		s.dropPending()
	}
	s.touch()
	s.ledgerChanged()
	return nil
}

// Before a stream writes to a ring of the peer's, it is made sure that it may (Config.Reaches): on one host the kernel is
// asked for that, and the peer decides how long the answer takes. Until then a stream that begins is not its owner's,
// and one that goes on writes to the ring that it has.

// await has what a record names wait for Reached.
func (s *Stream) await(r *wire.Record) {
	s.named = *r
	s.link.Named = append(s.link.Named, s)
	s.link.More = true
}

// receivedRing takes RING, which waits until it is known that its ring is there.
func (s *Stream) receivedRing(r *wire.Record) error {
	if s.link.cfg.Reaches(r.Ring) {
		return s.receivedRecord(r)
	}
	if s.isAwaiting() || s.ledger.Stage() != credit.Open {
		return fmt.Errorf("RING for a stream that is %v, or before the last is taken", s.ledger.Stage())
	}
	s.await(r)
	return nil
}

func (s *Stream) isAwaiting() bool { return s.named.Ring.Size > 0 }

// PeerRing is the ring at the peer that the stream wants to know of.
func (s *Stream) PeerRing() wire.RingPlace {
	if s.isAwaiting() {
		return s.named.Ring
	}
	return s.peer
}

// Reached says that this side may write to PeerRing. The link ends if the peer has broken the protocol.
func (s *Stream) Reached() {
	r := s.named
	s.named = wire.Record{}
	switch {
	case r.Type != credit.RingRecord:
		s.touch()
	case s.ledger.Stage() != credit.Open || s.ledger.EndReceived()&credit.ResetEnd != 0 || s.ledger.Acked(): // it has ended meanwhile
	default:
		if err := s.receivedRecord(&r); err != nil {
			s.link.BrokenBy(fmt.Errorf("%v: %w", r.Type, err))
		}
	}
}
