package machine

import "github.com/ringnet/ringnet/internal/fabric"

// Loan is a buffer of registered memory that its owner has handed over to one Write: the device sends from it, and it
// is returned when the device has.
type Loan struct {
	Owner  any // what its caller knows it by
	memory fabric.Memory
	lent   int // chunks that the device has yet to send, and one while it is being written
}

// Lend hands a buffer over for a Write, which ends with Written.
func (l *Link) Lend(memory fabric.Memory, owner any) *Loan {
	b := &Loan{Owner: owner, memory: memory, lent: 1}
	l.send.loans[b] = struct{}{}
	return b
}

// Written notes that the Write is over.
func (l *Link) Written(b *Loan) { l.unlend(b) }

// over reports whether the buffer has been returned.
func (b *Loan) over() bool { return b.lent == 0 }

// unlend takes one off what is lent, and returns the buffer after the last.
func (l *Link) unlend(b *Loan) {
	if b.lent == 0 {
		return // the link has ended meanwhile
	}
	if b.lent--; b.lent == 0 {
		delete(l.send.loans, b)
		l.Returned = append(l.Returned, b)
		l.More = true
	}
}

// handBack returns the buffers of a link that sends nothing any more.
func (l *Link) handBack() {
	for b := range l.send.loans {
		b.lent = 1
		l.unlend(b)
	}
}

// AcceptLent takes n bytes of the Room from a buffer, from a position on.
func (s *Stream) AcceptLent(b *Loan, from, n int) {
	q := &s.link.send
	s.pending.add(&q.staging, q.staging.lend(b, from, n))
	s.accepted(n)
}
