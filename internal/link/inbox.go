package link

import (
	"time"

	"github.com/ringnet/ringnet/ring"
)

// inbox is what has arrived on a stream and has not been read: in the ring that
// the peer writes to, and before that in the one it wrote to before. Guarded by
// Link.mu; the bytes themselves belong to the one Read under way.
type inbox struct {
	ring *ring.Ring // over held
	old  *ring.Ring // over drained, until that is empty; or nil

	held    piece // size 0 when it has been given back
	drained piece
	offered piece // told of by RING and not written to yet, or about to be

	// filled is how often in a row the peer has used all of the room that it
	// had, each time soon after the last, at which time that was.
	filled int
	last   time.Time

	credits int       // sent in a row, each rapidly after the last
	told    time.Time // when that was

	want   int  // bytes that the Peek under way waits for; 0: there is none
	taking bool // a Read copies out of the ring, most likely without mu

	grown bool   // the stream is among link.memory.tidying.grown
	seen  uint64 // bytes received, when that was last looked through
}

func (b *inbox) Len() int {
	if b.old != nil {
		return b.old.Len() + b.ring.Len()
	}
	return b.ring.Len()
}

// Held returns the first n bytes, or fewer, in two parts.
func (b *inbox) Held(n int) (first, second []byte) {
	if b.old != nil {
		return b.old.Held(n)
	}
	return b.ring.Held(n)
}

// ends says whether what comes behind the n bytes held, which lie in one piece, will
// lie elsewhere.
func (b *inbox) ends(n int) bool {
	return b.old != nil || ring.Contiguous(b.ring.Tail()+uint64(n), b.ring.Size(), b.ring.Size()) == b.ring.Size()
}

// keep has the memory of the first bytes kept for slices of it, whatever becomes of
// the ring.
func (b *inbox) keep() {
	p := b.held
	if b.old != nil {
		p = b.drained
	}
	p.slab.memory.Keep()
}

// release gives up the first n bytes, all of which Held returned, and returns
// the position behind them.
func (b *inbox) release(n int) uint64 {
	r := b.ring
	if b.old != nil {
		r = b.old
	}
	pos := r.Tail() + uint64(n)
	r.Release(pos)
	b.dropOld()
	return pos
}

// clear gives up all bytes, and returns the position behind them.
func (b *inbox) clear() uint64 {
	if b.old != nil {
		b.old.Release(b.old.Head())
		b.dropOld()
	}
	b.ring.Release(b.ring.Head())
	return b.ring.Head()
}

func (b *inbox) dropOld() {
	if b.old != nil && b.old.Len() == 0 {
		b.old = nil
	}
}

// renew makes the offered ring the one that the peer writes to.
func (b *inbox) renew() {
	if b.ring.Len() > 0 {
		b.old = b.ring
	}
	b.ring = ring.NewAt(b.offered.bytes(), b.ring.Head())
	b.drained, b.held, b.offered = b.held, b.offered, piece{}
}

// eagerRing is the size that a ring grows to as soon as it is filled, whether or
// not it is read: programs of package net rely on some tens of KiB being on their
// way while no call reads, for that is what TCP takes. Where memory is shared
// nothing is ever on its way, and larger rings only drive each other out of the
// caches: with 1 MiB, 64 streams of 64 KiB messages were 0.7 times as fast.
const eagerRing = 256 << 10

// A ring that is filled fills times, each within soon of the last, is made growth
// times as large. Since the peer is given room by the quarter, it has then been
// read once at least, at the rate of its size in fills times soon: 640 KB/s where
// this begins. (An emulated device moves 40 MB/s, and is busy with others at times.)
const (
	growth = 4
	fills  = 4
	soon   = 100 * time.Millisecond
)

// fill counts that the peer has used all of its room.
func (b *inbox) fill() {
	now := time.Now()
	if now.Sub(b.last) > soon {
		b.filled = 0
	}
	b.filled++
	b.last = now
}

// filled handles that the peer has used all of its room: a small ring grows. Called with mu
// held.
func (s *Stream) filled() {
	s.inbox.fill()
	if s.inbox.held.size < eagerRing {
		s.grow(eagerRing)
		s.changed()
	}
}

// manyCredits are so many that a larger ring, which needs fewer, is worth its
// memory: a ping-pong whose messages are a quarter of the ring sends one for each, and
// makes 0.7 times the round trips. With 16 KiB that is 400 KB/s at least, for each
// CREDIT comes within rapid of the last.
const (
	manyCredits = 16
	rapid       = 10 * time.Millisecond
)

// credited counts a CREDIT that is sent: after many in a row the ring grows. Called with mu
// held.
func (s *Stream) credited() {
	b := &s.inbox
	if b.held.size >= eagerRing && s.link.sharesMemory() {
		return
	}
	now := time.Now()
	if now.Sub(b.told) > rapid {
		b.credits = 0
	}
	b.told = now
	if b.credits++; b.credits >= manyCredits {
		s.grow(max(eagerRing, growth*b.held.size))
	}
}

// grow offers the peer a ring of the given size, or as large as one may be, if
// there is memory for it. Called with mu held.
func (s *Stream) grow(size int) {
	l := s.link
	size = min(size, l.cfg.RecvBuffer)
	if l.stage != up || size <= s.inbox.held.size || !s.ledger.MayOffer() {
		return
	}
	p, err := l.memory.rings.takeToGrow(size, l.cfg.FirstRing())
	if err != nil {
		s.inbox.filled, s.inbox.credits = 0, 0 // the ring stays as it is for now
		return
	}
	s.offerRing(p)
	l.noteGrown(s)
}

// shrink offers the peer a ring of the size that streams begin with, in place of
// a larger one with nothing in it, and says how many bytes that will free. Called
// with mu held.
func (s *Stream) shrink() int {
	b := &s.inbox
	first := s.link.cfg.FirstRing()
	switch {
	case b.offered.size > 0 && b.offered.size < b.held.size:
		return b.held.size - b.offered.size // the peer knows
	case b.held.size <= first || b.Len() > 0 || !s.ledger.MayOffer():
		return 0
	}
	p, err := s.link.memory.rings.takeToShrink(first)
	if err != nil {
		return 0
	}
	s.offerRing(p)
	s.changed()
	return b.held.size - first
}

// offerRing offers the peer another ring. Called with mu held.
func (s *Stream) offerRing(p piece) {
	s.inbox.filled, s.inbox.credits = 0, 0
	s.inbox.offered = p
	s.ledger.Offer(p.size)
}

// giveBack returns the memory of rings that the peer writes to no more and that
// hold nothing. Called with mu held.
func (s *Stream) giveBack() {
	held, old, offered, _ := s.ledger.Rings()
	b := &s.inbox
	if held == 0 && b.held.size > 0 {
		s.givePiece(&b.held)
	}
	if old == 0 && b.drained.size > 0 {
		s.givePiece(&b.drained)
	}
	if offered == 0 && b.offered.size > 0 {
		s.givePiece(&b.offered)
	}
}

// givePiece returns a piece of memory, and has the link look later for slabs to free.
// Called with mu held.
func (s *Stream) givePiece(p *piece) {
	if s.link.memory.rings.give(*p) {
		s.link.tidyLater()
	}
	*p = piece{}
}
