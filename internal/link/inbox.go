package link

import (
	"time"

	"github.com/ringnet/ringnet/ring"
)

// inbox is the memory of the rings that the peer writes a stream's bytes to. Which bytes of theirs
// have arrived and have not been read, the ledger knows. Guarded by Link.mu; the bytes themselves
// belong to the one Read under way.
type inbox struct {
	held    piece // size 0 when it has been given back
	drained piece // of the ring before, until all in it has been read
	offered piece // told of by RING and not written to yet

	timesFilled int       // by the peer, in a row, each within fillsWithin of the last
	lastFilled  time.Time // when it was filled last

	creditsInARow int       // that were sent, each within creditsWithin of the last
	lastCredit    time.Time // when one was sent last

	want    int  // bytes that the Peek under way waits for; 0: there is none
	taking  bool // a Read copies out of the ring, most likely without mu
	growing bool // the stream waits in line for memory for a larger ring

	grown          bool      // the stream is among link.memory.shrinking.grown
	receivedAtTick uint64    // ledger.Received, at the last shrinkTick
	lastUsed       time.Time // grown: when bytes came, or CREDIT was sent, last
}

// arrivedBytes returns the first n bytes that have arrived and have not been read, or fewer, in two parts: those of
// one ring. Called with mu held.
func (s *Stream) arrivedBytes(n int) (first, second []byte) {
	n = min(n, s.ledger.Unconsumed())
	if n == 0 {
		return nil, nil
	}
	at, p := s.ledger.Consumed(), s.inbox.held
	if left := s.inDrained(); left > 0 {
		n, p = min(n, left), s.inbox.drained
	}
	return ring.Slices(p.bytes(), at, n)
}

// inDrained is how many bytes that have not been read lie in the ring before the present one. Called with mu
// held.
func (s *Stream) inDrained() int {
	_, old, _, base := s.ledger.Rings()
	if old == 0 {
		return 0
	}
	return int(base - s.ledger.Consumed())
}

// endsPiece reports whether the bytes behind the first n, which lie in one piece, will lie
// elsewhere. Called with mu held.
func (s *Stream) endsPiece(n int) bool {
	return s.inDrained() > 0 || ring.Offset(s.ledger.Consumed()+uint64(n), s.inbox.held.size) == 0
}

// keepArrived keeps the memory of the first bytes mapped for slices of it, also when the ring is
// freed. Called with mu held.
func (s *Stream) keepArrived() {
	p := s.inbox.held
	if s.inDrained() > 0 {
		p = s.inbox.drained
	}
	p.slab.memory.Keep()
}

// renew makes the offered ring the one that the peer writes to.
func (b *inbox) renew() {
	b.drained, b.held, b.offered = b.held, b.offered, piece{}
}

// eagerRing is the size that a ring grows to as soon as it is filled, whether or
// not it is read: programs of package net rely on some tens of KiB being on their
// way while no call reads, for that is what TCP takes. Where memory is shared
// nothing is ever on its way, and larger rings only drive each other out of the
// caches: with 1 MiB, 64 streams of 64 KiB messages were 0.7 times as fast.
const eagerRing = 256 << 10

// sharedRing is the size that CREDITs make a ring grow to where memory is shared, for the same
// reason: with eagerRing, 16, 64 and 256 streams of 1 KiB messages were 0.7 to 0.8 times as fast.
const sharedRing = 64 << 10

// A ring that is filled fillsToGrow times, each within fillsWithin of the last, is made
// growth times as large. The peer gets room by the quarter, so by then the ring has been
// read once at least, at a rate of its size in fillsToGrow times fillsWithin or more: 640
// KB/s for the smallest that this makes larger. (An emulated device moves 40 MB/s, and is
// busy with other work at times.)
const (
	growth      = 4
	fillsToGrow = 4
	fillsWithin = 100 * time.Millisecond
)

// fill counts that the peer has used all of its room.
func (b *inbox) fill(now time.Time) {
	if now.Sub(b.lastFilled) > fillsWithin {
		b.timesFilled = 0
	}
	b.timesFilled++
	b.lastFilled = now
}

// useRing notes that the ring is in use, if it is larger than at first, and so could be given back. Called with mu
// held.
func (s *Stream) useRing() {
	if b := &s.inbox; b.grown {
		b.lastUsed = s.link.now()
	}
}

// filled handles that the peer has used all of its room: a small ring grows. Called with mu
// held.
func (s *Stream) filled() {
	s.inbox.fill(s.link.now())
	if s.inbox.held.size < eagerRing {
		s.grow(eagerRing)
	}
}

// A ring for which creditsToGrow CREDITs are sent in a row, each within creditsWithin of
// the last, is made larger: a larger one needs fewer. A ping-pong whose messages are a
// quarter of the ring sends one for each, and makes 0.7 times the round trips. With 16
// KiB that is a rate of 400 KB/s at least. (As many within 160 ms, which may come in bursts,
// made the rings of 64 connections of net/http over shm larger, too, and 0.92 of the requests.)
const (
	creditsToGrow = 16
	creditsWithin = 10 * time.Millisecond
)

// credited counts a CREDIT that is sent to give room: after many in a row the ring grows. Called
// with mu held.
func (s *Stream) credited() {
	s.stats.CreditsSent++
	b := &s.inbox
	s.useRing()
	size := max(eagerRing, growth*b.held.size)
	if s.link.sharesMemory() {
		size = sharedRing
	}
	if size <= b.held.size {
		return
	}
	now := s.link.now()
	if now.Sub(b.lastCredit) > creditsWithin {
		b.creditsInARow = 0
	}
	b.lastCredit = now
	if b.creditsInARow++; b.creditsInARow >= creditsToGrow {
		s.grow(size)
	}
}

// grow offers the peer a ring of the given size, RecvBuffer at most, if memory allows: at
// once, or when that is registered. Called with mu held.
func (s *Stream) grow(size int) {
	size = min(size, s.link.cfg.RecvBuffer)
	if s.mayGrow(size) && !s.inbox.growing {
		s.inbox.growing = true
		s.link.getInLine(&s.link.memory.line.growing, func(err error) *lack { return s.tryToGrow(size, err) })
	}
}

func (s *Stream) mayGrow(size int) bool {
	return !s.link.stage.final() && size > s.inbox.held.size && s.ledger.MayOffer()
}

// tryToGrow is an attempt of grow's. Called with mu held.
func (s *Stream) tryToGrow(size int, err error) *lack {
	l := s.link
	var p piece
	if err == nil && s.mayGrow(size) {
		var lacks *lack
		if p, lacks, err = l.memory.rings.takeToGrow(size, l.cfg.firstRing()); lacks != nil {
			return lacks
		}
	}
	s.inbox.growing = false
	switch {
	case err != nil:
		s.inbox.timesFilled, s.inbox.creditsInARow = 0, 0 // the ring stays as it is for now
	case p.size > 0:
		s.offerRing(p)
		s.changed()
		l.noteGrown(s)
	}
	return nil
}

// shrink offers the peer a ring of the size that streams begin with, in place of
// a larger one with nothing in it, and says how many bytes that will free. Called
// with mu held.
func (s *Stream) shrink() int {
	b := &s.inbox
	first := s.link.cfg.firstRing()
	switch {
	case b.offered.size > 0 && b.offered.size < b.held.size:
		return b.held.size - b.offered.size // the peer knows
	case b.held.size <= first || s.ledger.Unconsumed() > 0 || !s.ledger.MayOffer():
		return 0
	}
	p, ok := s.link.memory.rings.takeToShrink(first)
	if !ok {
		return 0
	}
	s.offerRing(p)
	s.changed()
	return b.held.size - first
}

// offerRing offers the peer another ring. Called with mu held.
func (s *Stream) offerRing(p piece) {
	s.inbox.timesFilled, s.inbox.creditsInARow = 0, 0
	s.inbox.offered = p
	s.ledger.Offer(p.size)
}

// giveBack returns the memory of rings to which the peer does not write any more and that
// hold nothing. Called with mu held.
func (s *Stream) giveBack() {
	held, old, offered, _ := s.ledger.Rings()
	s.giveUnused(held, &s.inbox.held)
	s.giveUnused(old, &s.inbox.drained)
	s.giveUnused(offered, &s.inbox.offered)
}

// giveUnused returns a piece of memory if the ledger has no ring there any more. Called with mu
// held.
func (s *Stream) giveUnused(ring int, p *piece) {
	if ring == 0 && p.size > 0 {
		s.link.giveRing(*p)
		*p = piece{}
	}
}
