package machine

import "github.com/ringnet/ringnet/internal/fabric"

// Loan is a buffer of registered memory that its owner has handed over to one Write: the device sends from it, and it
// is returned when the device has. For that the last message with its bytes is signaled, whatever others send.
type Loan struct {
	Owner    any // what its caller knows it by
	memory   fabric.Memory
	writing  bool // the Write is under way
	unsent   int  // bytes that were accepted and not posted
	sent     sent // its last bytes that have been posted
	returned bool
}

// lentSent is a work request behind which none has bytes of a buffer, for now.
type lentSent struct {
	*Loan
	with sent
}

// Lend hands a buffer over for a Write, which ends with Written.
func (l *Link) Lend(memory fabric.Memory, owner any) *Loan {
	b := &Loan{Owner: owner, memory: memory, writing: true}
	l.send.loans[b] = struct{}{}
	return b
}

// AcceptLent takes n bytes of the Room from a buffer, from a position on.
func (s *Stream) AcceptLent(b *Loan, from, n int) {
	q := &s.link.send
	b.unsent += n
	s.pending.add(&q.staging, q.staging.add(chunk{loan: b, from: uint64(from), to: uint64(from + n)}))
	s.accepted(n)
}

// Written notes that the Write is over.
func (l *Link) Written(b *Loan) {
	b.writing = false
	l.unlend(b)
}

// postedLent notes that the last work request of the batch has the next n bytes of a buffer.
func (l *Link) postedLent(b *Loan, n int, with sent) {
	q := &l.send
	b.unsent -= n
	b.sent = with
	q.unsignaledLent += n
	if b.unsent == 0 {
		q.lent.push(lentSent{b, with})
	}
	if b.unsent == 0 || q.unsignaledLent >= q.window.unsignaled() {
		l.signal()
	}
}

// droppedLent notes that n bytes of a buffer will not be sent. Those before them may not be signaled, but the end of the
// stream is, which follows.
func (l *Link) droppedLent(b *Loan, n int) {
	b.unsent -= n
	l.unlend(b)
	if !b.returned && b.sent > 0 {
		l.send.lent.push(lentSent{b, b.sent})
	}
}

// unlend returns a buffer that nothing more will be sent of.
func (l *Link) unlend(b *Loan) {
	if b.returned || b.writing || b.unsent > 0 || b.sent > 0 && !b.sent.completed(&l.send.slots) {
		return
	}
	l.giveBuffer(b)
}

func (l *Link) giveBuffer(b *Loan) {
	b.returned = true
	delete(l.send.loans, b)
	l.Returned = append(l.Returned, b)
	l.More = true
}

// unlendCompleted returns the buffers whose work requests have completed.
func (l *Link) unlendCompleted() {
	q := &l.send
	for q.lent.Len() > 0 && q.lent.front().with.completed(&q.slots) {
		l.unlend(q.lent.Pop().Loan)
	}
}

// handBack returns the buffers of a link that sends nothing any more.
func (l *Link) handBack() {
	for b := range l.send.loans {
		l.giveBuffer(b)
	}
}
