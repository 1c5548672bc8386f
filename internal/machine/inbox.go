package machine

import (
	"bufio"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/ring"
)

// inbox is the memory of the rings that the peer writes a stream's bytes to. Which bytes of theirs
// have arrived and have not been read, the ledger knows. The bytes belong to the
// one Read under way.
type inbox struct {
	held    ring.Piece // size 0 when it has been given back
	drained ring.Piece // of the ring before, until all in it has been read
	offered ring.Piece // told of by RING and not written to yet

	quarters   int       // of the ring, for which CREDITs were sent in a row, each soon after the last
	advertised uint64    // position of the last CREDIT
	lastCredit time.Time // when it was sent
	full       bool      // the peer has used all of its room, and no pause between two has come of that yet

	taking  bool // a Read copies out of the ring
	growing int  // size of the larger ring that the stream waits for; 0: it does not

	grown          bool      // the stream is among link.grown
	receivedAtTick uint64    // ledger.Received, at the last shrinkTick
	lastUsed       time.Time // grown: when bytes came, or CREDIT was sent, last
}

// arrivedBytes returns the first n bytes that have arrived and have not been read, or fewer, in two parts: those of
// one ring.
func (s *Stream) arrivedBytes(n int) (first, second []byte) {
	n = min(n, s.ledger.Unconsumed())
	if n == 0 {
		return nil, nil
	}
	at, p := s.ledger.Consumed(), s.inbox.held
	if left := s.inDrained(); left > 0 {
		n, p = min(n, left), s.inbox.drained
	}
	return ring.Slices(p.Bytes(), at, n)
}

// inDrained is how many bytes that have not been read lie in the ring before the present one.
func (s *Stream) inDrained() int {
	_, old, _, base := s.ledger.Rings()
	if old == 0 {
		return 0
	}
	return int(base - s.ledger.Consumed())
}

// endsPiece reports whether the bytes behind the first n, which lie in one piece, will lie
// elsewhere.
func (s *Stream) endsPiece(n int) bool {
	return s.inDrained() > 0 || ring.Offset(s.ledger.Consumed()+uint64(n), s.inbox.held.Size()) == 0
}

// Front is the ring with the next bytes to be read.
func (s *Stream) Front() ring.Piece {
	if s.inDrained() > 0 {
		return s.inbox.drained
	}
	return s.inbox.held
}

// Arrived returns the next n bytes to be read, or as many as there are, or why
// there will be none. They stay until Taken.
func (s *Stream) Arrived(n int) (first, second []byte, err error) {
	if err := s.readError(); err != nil {
		s.tell(err)
		return nil, nil, err
	}
	first, second = s.arrivedBytes(n)
	s.inbox.taking = len(first) > 0
	return first, second, nil
}

// Taken frees the room of n bytes that have been read, and has CREDIT sent if a quarter of the
// ring is due.
func (s *Stream) Taken(n int) {
	s.inbox.taking = false
	s.ledger.Consume(s.ledger.Consumed() + uint64(n))
	s.ledgerChanged()
}

// Unread is how many bytes have arrived and have not been read, and Unsent how many have been accepted and not sent.
func (s *Stream) Unread() int { return s.ledger.Unconsumed() }
func (s *Stream) Unsent() int { return s.ledger.Pending() }

// Piece returns the next n bytes, or as many as have arrived in one piece; then the error
// is why no more will come in it, or nil if they may.
func (s *Stream) Piece(n int) ([]byte, error) {
	if s.use != Reading {
		return nil, s.readError()
	}
	first, _ := s.arrivedBytes(n)
	if len(first) == n {
		return first, nil
	}
	if len(first) < s.ledger.Unconsumed() {
		return first, bufio.ErrBufferFull
	}
	err := s.endError()
	if err == nil && len(first) > 0 && (s.endsPiece(len(first)) || s.ledger.Full()) {
		err = bufio.ErrBufferFull
	}
	return first, err
}

// PieceTold is Piece for a call that returns the error.
func (s *Stream) PieceTold(n int) ([]byte, error) {
	p, err := s.Piece(n)
	s.tell(err)
	return p, err
}

// renew makes the offered ring the one that the peer writes to.
func (b *inbox) renew() {
	b.drained, b.held, b.offered = b.held, b.offered, ring.Piece{}
}

// A ring grows if it is too small: at once, to EagerRing, when the peer has used all of it, whether or
// not it is read, for programs of package net rely on some tens of KiB being on their
// way while no call reads, for that is what TCP takes; and when it is read as fast as CREDITs
// for QuartersToGrow quarters of it in a row show, each within creditsWithin of the last, or within fullWithin if the peer has waited for it meanwhile,
// perhaps at the end of a long way. A larger one needs fewer: a ping-pong whose messages are a
// quarter of the ring, which is never full, sends one for each, and makes 0.7 times the round trips. With 16
// KiB that is a rate of 400 KB/s at least, or 40 where the peer waits. (As many within 160 ms, which may come in bursts,
// made the rings of 64 connections of net/http over shm larger, too, and 0.92 of the requests.)
//
// Where memory is shared nothing is ever on its way, and larger rings only drive each other out of the
// caches: with 1 MiB, 64 streams of 64 KiB messages were 0.7 times as fast, and with EagerRing 16, 64 and 256 streams of 1
// KiB messages 0.7 to 0.8 times. There CREDITs make rings grow to SharedRing.
const (
	EagerRing      = 256 << 10
	SharedRing     = 64 << 10
	growth         = 4
	QuartersToGrow = 16
	creditsWithin  = 10 * time.Millisecond
	fullWithin     = 100 * time.Millisecond
)

// filled handles that the peer has used all of its room.
func (s *Stream) filled() {
	s.inbox.full = true
	s.grow(EagerRing)
}

// creditSent handles that a CREDIT is sent to give room, up to a position.
func (s *Stream) creditSent(position uint64) {
	s.stats.CreditsSent++
	s.useRing()
	b, now := &s.inbox, s.link.now()
	switch since := now.Sub(b.lastCredit); {
	case since <= creditsWithin:
	case b.full && since <= fullWithin:
		b.full = false
	default:
		b.quarters = 0
	}
	b.quarters += int(position-b.advertised) / max(b.held.Size()/credit.CreditsPerWindow, 1)
	b.advertised, b.lastCredit = position, now
	if b.quarters < QuartersToGrow {
		return
	}
	if s.link.cfg.SharesMemory {
		s.grow(SharedRing)
	} else {
		s.grow(max(EagerRing, growth*b.held.Size()))
	}
}

// useRing notes that the ring is in use, if it is larger than at first, and so could be given back.
func (s *Stream) useRing() {
	if b := &s.inbox; b.grown {
		b.lastUsed = s.link.now()
	}
}

// grow offers the peer a ring of the given size, RecvBuffer at most, if memory allows.
func (s *Stream) grow(size int) {
	size = min(size, s.link.cfg.RecvBuffer)
	if s.inbox.growing == 0 && s.mayGrow(size) {
		s.inbox.growing = size
		s.link.Growing = append(s.link.Growing, s)
		s.link.More = true
	}
}

func (s *Stream) mayGrow(size int) bool {
	return !s.link.stage.Final() && size > s.inbox.held.Size() && s.ledger.MayOffer()
}

// GrowsTo is how large the stream's ring is to become.
func (s *Stream) GrowsTo() int { return s.inbox.growing }

// Grow offers the peer the larger ring that the stream wants, or returns how many bytes more are to be registered for
// that; then it is called again. err is why the stream gets none.
func (s *Stream) Grow(err error) (lacks int) {
	l, size := s.link, s.inbox.growing
	var p ring.Piece
	if err == nil && s.mayGrow(size) {
		if p, lacks = l.rings.TakeToGrow(size, l.cfg.FirstRing()); lacks > 0 {
			return lacks
		}
	}
	s.inbox.growing = 0
	switch {
	case err != nil:
		s.inbox.quarters = 0 // the ring stays as it is for now
	case p.Size() > 0:
		s.offerRing(p)
		s.ledgerChanged()
		l.noteGrown(s)
	}
	return 0
}

// shrink offers the peer a ring of the size that streams begin with, in place of
// a larger one with nothing in it, and says how many bytes that will free.
func (s *Stream) shrink() int {
	b := &s.inbox
	first := s.link.cfg.FirstRing()
	switch {
	case b.offered.Size() > 0 && b.offered.Size() < b.held.Size():
		return b.held.Size() - b.offered.Size() // the peer knows
	case b.held.Size() <= first || s.ledger.Unconsumed() > 0 || !s.ledger.MayOffer():
		return 0
	}
	p, ok := s.link.rings.TakeToShrink(first)
	if !ok {
		return 0
	}
	s.offerRing(p)
	s.ledgerChanged()
	return b.held.Size() - first
}

// offerRing offers the peer another ring.
func (s *Stream) offerRing(p ring.Piece) {
	s.inbox.quarters = 0
	s.inbox.offered = p
	s.ledger.Offer(p.Size())
}

// giveBack returns the memory of rings to which the peer does not write any more and that
// hold nothing.
func (s *Stream) giveBack() {
	held, old, offered, _ := s.ledger.Rings()
	s.giveUnused(held, &s.inbox.held)
	s.giveUnused(old, &s.inbox.drained)
	s.giveUnused(offered, &s.inbox.offered)
}

// giveUnused returns a piece of memory if the ledger has no ring there any more.
func (s *Stream) giveUnused(size int, p *ring.Piece) {
	if size == 0 && p.Size() > 0 {
		s.link.GiveRing(*p)
		*p = ring.Piece{}
	}
}
