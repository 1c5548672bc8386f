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
	posted      int                         // receives posted and not completed
	spent       int                         // receives that data has completed, to be posted again
	broken      bool                        // the peer breaks the protocol: nothing that follows makes sense
	flushing    bool                        // the queue pair is in ERR, and nobody has said why
	messages    uint64                      // ever received, of any kind
	touched     []*Stream                   // whose calls may have become ready
	completions [maxBatch]fabric.Completion // scratch of pollCompletions
}

// pollAndSend takes what has completed, and sends what may be sent. Called with
// mu held, which it may release to send, after each change that gives something
// to send or somebody to wake.
func (l *Link) pollAndSend() {
	l.pollCompletions()
	l.trySend()
	l.settle()
}

// look takes what has completed, by whoever has a moment, and sends what may be
// sent for that. It says whether there was anything. Called with mu held, which it
// may release to send.
func (l *Link) look() bool {
	if !l.pollCompletions() {
		return false
	}
	l.trySend()
	l.settle()
	return true
}

// pollCompletions takes what has completed, up to a bound, and wakes the calls
// that it makes ready. It says whether there was anything. Called with mu held.
func (l *Link) pollCompletions() bool {
	if l.stage >= seeking {
		return false
	}
	l.watch.polls++
	l.watch.more = false
	for polls := 1; ; polls++ {
		n, err := l.ep.Poll(l.receive.completions[:])
		if err != nil {
			l.fail(lost(err))
			l.receive.posted = 0 // a queue that cannot be polled gives nothing back
		} else if n == 0 && polls == 1 && !l.abandoned {
			return false
		}
		l.completed(l.receive.completions[:n])
		if n < maxBatch {
			break
		}
		if polls == maxPolls {
			l.watch.more = true
			break
		}
	}
	if l.abandoned {
		l.receive.posted = 0
	}
	l.wakeTouched()
	return true
}

// completed takes a batch of completions. Receives of control messages are
// posted again at once, for the peer may always send as many; those of data just
// before they are acknowledged, for until then it may not.
func (l *Link) completed(batch []fabric.Completion) {
	control := 0
	for i := range batch {
		wc := &batch[i]
		if wc.Recv {
			l.receive.posted--
		}
		switch {
		case wc.Status == fabric.OK && !wc.Recv:
			l.alive.activity++
			l.sendCompleted(wc.ID)
		case wc.Status == fabric.OK:
			l.alive.activity++
			if wc.Op == fabric.WriteImm {
				l.receive.spent++
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

// repost posts again the receives that data has completed, and says whether
// they are posted.
func (l *Link) repost() bool {
	n := l.receive.spent
	l.receive.spent = 0
	return l.postReceives(n)
}

func (l *Link) postReceives(n int) bool {
	if n == 0 || l.cause != nil || l.receive.flushing { // siw does not flush what is posted in ERR
		return l.cause == nil
	}
	if err := l.ep.PostRecv(n); err != nil {
		l.fail(lost(err))
		return false
	}
	l.receive.posted += n
	return true
}

// flushed takes back what a queue pair in ERR gives back. Why it failed is said
// by a request that failed, or by Wait, which Disconnect gives something to say;
// or by nobody within drainTime.
func (l *Link) flushed() {
	if l.cause != nil || l.receive.flushing {
		return
	}
	l.receive.flushing = true
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
		l.receive.broken = true
		if disconnected(l.cause) {
			l.cause, l.final = nil, false // that it disconnected, too, is the lesser news
		}
		l.fail(&ProtocolError{err.Error()})
	}
}

// stream is the stream of a number.
func (l *Link) stream(number uint32) (*Stream, error) {
	if int(number) < len(l.streams) && l.streams[number] != nil {
		return l.streams[number], nil
	}
	return nil, fmt.Errorf("there is no stream %d", number)
}

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
	s.stats.MessagesReceived++
	s.streak = 0
	if newRing {
		s.inbox.renew()
		s.changed()
	}
	s.inbox.ring.Commit(wc.Len)
	if flags&wire.FullRing != 0 && s.use == reading {
		s.filled()
	}
	if s.use == reading {
		s.touch()
		return nil
	}
	if s.use == disowned && wc.Len > 0 {
		s.ledger.Reset() // nobody will ever read it
	}
	s.discard()
	s.changed()
	return nil
}

func (l *Link) receivedSend(b []byte) error {
	h, records, err := wire.DecodeHeader(b)
	if err != nil {
		return err
	}
	acked := credit.Totals{Data: h.Data, Records: h.Records}
	defer l.strike()
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

func (l *Link) receivedRecord(r *wire.Record) error {
	switch r.Type {
	case wire.GoAwayRecord:
		if l.leaving.heard {
			return fmt.Errorf("a second GOAWAY")
		}
		l.leaving.heard = true
		l.leaving.due = l.leaving.sent == 0
		return nil
	case wire.OpenRecord:
		l.watch.opened = true
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

func (s *Stream) receivedRecord(r *wire.Record) error {
	value := r.Position
	if r.Ring.Size > 0 {
		value = uint64(r.Ring.Size)
	}
	if err := s.ledger.ReceiveRecord(credit.Record(r.Type), value); err != nil {
		return err
	}
	switch r.Type {
	case wire.AcceptRecord:
		if err := s.link.reach(r.Ring); err != nil {
			return err
		}
		s.peer = r.Ring
	case wire.RefuseRecord:
		s.refusal = r.Reason
	case wire.RingRecord:
		if err := s.link.reach(r.Ring); err != nil {
			return err
		}
		s.next = r.Ring
		s.queue()
	case wire.CreditRecord:
		s.stats.CreditsReceived++
	case wire.ResetRecord:
		s.late = r.Late
		s.dropPending()
	}
	s.touch()
	s.changed()
	return nil
}

// touch has the stream's calls woken, if they are ready, when the batch that is
// being taken has been dealt with. Called with mu held.
func (s *Stream) touch() {
	if !s.touched {
		s.touched = true
		s.link.receive.touched = append(s.link.receive.touched, s)
	}
}

func (l *Link) wakeTouched() {
	for i, s := range l.receive.touched {
		l.receive.touched[i] = nil
		s.touched = false
		s.wake()
	}
	l.receive.touched = l.receive.touched[:0]
}
