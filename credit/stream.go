package credit

import "fmt"

// Stage is how far a stream is in its life at one side of a link.
//
//	Dialing    this side has to send OPEN                       → Opening, Over
//	Opening    OPEN has been sent and not been answered         → Open, Abandoned, Over
//	Abandoned  the same; after an ACCEPT this side resets it    → Open, Over
//	Answering  OPEN has come; this side has to send ACCEPT      → Open, Refusing
//	Refusing   OPEN has come; this side has to send REFUSE      → Over
//	Open       both sides may send bytes                        → Over
//	Over       neither side sends more about it: its number is free
//
// An open stream is over at a side that has sent its end and FINACK, and has received the
// peer's end and FINACK.
type Stage uint8

// The stages. AwaitsAnswer depends on the order of the first three.
const (
	Dialing Stage = iota
	Opening
	Abandoned
	Answering
	Refusing
	Open
	Over
)

func (s Stage) String() string {
	return [...]string{"dialing", "opening", "abandoned", "answering", "refusing", "open", "over"}[s]
}

// Ends is a set of the ends that were sent in one direction of a stream.
type Ends uint8

// The ends.
const (
	FinEnd   Ends = 1 << iota // no bytes follow
	ResetEnd                  // no bytes follow, and its sender reads no more; may follow FinEnd
)

// Stream is the ledger of one stream at one side of a link: which bytes this side may send, which
// record it has to send, and which rings the peer may still write to. It knows the sizes of
// rings, in bytes, and not where they lie. Sizes are powers of two; the caller checks those that
// the peer tells, as package wire does. Positions count bytes of one direction, from 0.
//
// stream_explore_test.go visits every state of small worlds of streams, and shows
// what each rule is for.
type Stream struct {
	stage Stage
	outgoing
	incoming
}

// outgoing is the direction that this side sends. Positions count the bytes of the
// stream: credited ≤ sent ≤ accepted.
type outgoing struct {
	accepted  uint64 // bytes; each has its place in the peer's ring
	dropped   bool   // bytes were accepted and will not be sent
	sent      uint64 // bytes
	credited  uint64 // bytes consumed, as the peer's last CREDIT says
	peerRing  uint64 // size of the ring that this side writes to
	nextRing  uint64 // size of the one that the peer offers, or 0
	peerBase  uint64 // position from which on bytes lie in peerRing
	endWanted Ends   // to be sent
	endSent   Ends
	acked     bool // FINACK has been received
}

// incoming is the direction that this side receives: advertised ≤ consumed ≤ received.
type incoming struct {
	received    uint64 // bytes
	consumed    uint64 // bytes
	advertised  uint64 // bytes consumed, as the last CREDIT says
	telling     bool   // CREDIT is due for whatever is consumed
	ring        uint64 // size of the ring that the peer writes to; 0 when it is free
	oldRing     uint64 // size of the one before, while bytes in it are not consumed
	offered     uint64 // size of the one offered and not taken, or 0
	offerDue    bool   // RING has not been sent
	base        uint64 // position from which on bytes lie in ring
	endReceived Ends
	ackSent     bool // FINACK has been sent
}

// NewStream returns the ledger of a stream that this side dials. ring is the size of its ring.
func NewStream(ring int) Stream {
	return Stream{stage: Dialing, incoming: incoming{ring: uint64(ring)}}
}

// AcceptStream returns the ledger of a stream that the peer has dialed. ring is the size of this
// side's ring, peerRing that of the ring in the peer's OPEN.
func AcceptStream(ring, peerRing int) Stream {
	return Stream{
		stage:    Answering,
		outgoing: outgoing{peerRing: uint64(peerRing)},
		incoming: incoming{ring: uint64(ring)},
	}
}

// Stage returns how far the stream is.
func (s *Stream) Stage() Stage { return s.stage }

// AwaitsAnswer reports whether this side dials the stream and the peer has not answered yet.
func (s *Stream) AwaitsAnswer() bool { return s.stage <= Abandoned }

// EndReceived returns which ends this side has received.
func (s *Stream) EndReceived() Ends { return s.endReceived }

// Closing reports whether this side has sent an end, or will.
func (s *Stream) Closing() bool { return s.endWanted != 0 }

// Acked reports whether the peer has acknowledged this side's end.
func (s *Stream) Acked() bool { return s.acked }

// Accepted returns the position of the next byte to accept.
func (s *Stream) Accepted() uint64 { return s.accepted }

// Sent returns the position of the next byte to send.
func (s *Stream) Sent() uint64 { return s.sent }

// Received returns the position of the next byte to receive.
func (s *Stream) Received() uint64 { return s.received }

// Consumed returns the position of the next byte to consume.
func (s *Stream) Consumed() uint64 { return s.consumed }

// Unconsumed returns how many bytes were received and not consumed.
func (s *Stream) Unconsumed() int { return int(s.received - s.consumed) }

// Space returns how many bytes can be accepted now.
func (s *Stream) Space() int {
	if s.stage != Open || s.endWanted != 0 {
		return 0
	}
	return int(max(s.credited, s.peerBase) + s.peerRing - s.accepted)
}

// Accept records that n bytes were accepted: it claims their room in the peer's ring. n is at most
// Space.
func (s *Stream) Accept(n int) {
	if n < 0 || n > s.Space() {
		panic(fmt.Sprintf("credit: accepting %d bytes with space for %d", n, s.Space()))
	}
	s.accepted += uint64(n)
}

// Pending returns how many bytes were accepted and not sent yet.
func (s *Stream) Pending() int { return int(s.accepted - s.sent) }

// Next returns how many bytes the next data message may carry at most, in one piece of the ring
// from position [Stream.Sent] on; and whether it is the first to a new ring. If it is, this side
// has to send it even without bytes.
func (s *Stream) Next() (n int, newRing bool) {
	if s.stage != Open || s.endSent != 0 {
		return 0, false
	}
	ring := s.peerRing
	if newRing = s.nextRing != 0 && s.accepted-s.sent <= s.nextRing; newRing {
		ring = s.nextRing
	}
	return int(min(s.accepted-s.sent, ring-s.sent&(ring-1))), newRing
}

// Send records a data message with the next n bytes, which is the first to a
// new ring if Next says so.
func (s *Stream) Send(n int) {
	most, newRing := s.Next()
	if n < 0 || n > most || n == 0 && !newRing {
		panic(fmt.Sprintf("credit: sending %d bytes of %d", n, most))
	}
	if newRing {
		s.peerRing, s.nextRing, s.peerBase = s.nextRing, 0, s.sent
	}
	s.sent += uint64(n)
}

// Receive records a data message of n bytes that has come; newRing is the flag of the first
// message to a new ring. The error means that the peer broke the protocol.
func (s *Stream) Receive(n int, newRing bool) error {
	switch {
	case s.stage != Open:
		return fmt.Errorf("data on a stream that is %v", s.stage)
	case s.endReceived != 0:
		return fmt.Errorf("%d bytes behind the end of the stream", n)
	case newRing && (s.offered == 0 || s.offerDue):
		return fmt.Errorf("data for a new ring when none was offered")
	case n < 0 || n == 0 && !newRing:
		return fmt.Errorf("data message of %d bytes", n)
	}
	ring, limit := s.ring, max(s.advertised, s.base)+s.ring
	if newRing {
		ring, limit = s.offered, s.received+s.offered
	}
	switch at := s.received & (ring - 1); {
	case s.received+uint64(n) > limit:
		return fmt.Errorf("data up to byte %d when credit ends at %d", s.received+uint64(n), limit)
	case at+uint64(n) > ring:
		return fmt.Errorf("%d bytes at %d in a ring of %d", n, at, ring)
	}
	if newRing {
		s.oldRing, s.ring, s.offered, s.base = s.ring, s.offered, 0, s.received
	}
	s.received += uint64(n)
	s.settle()
	return nil
}

// Full reports whether the peer has used all room in the ring: it can send no more until bytes are
// consumed, except to another ring.
func (s *Stream) Full() bool {
	return s.received == max(s.advertised, s.base)+s.ring && !s.creditDue()
}

// Consume records that the bytes before the given position have been read or
// dropped.
func (s *Stream) Consume(position uint64) {
	if position < s.consumed || position > s.received {
		panic(fmt.Sprintf("credit: consumed up to %d after %d, with %d received", position, s.consumed, s.received))
	}
	s.consumed = position
	s.settle()
}

// MayOffer reports whether this side may offer the peer another ring: not while an offer is
// open, nor while the ring before the current one still holds bytes, nor if the peer has ended
// its direction or this side reads no more.
func (s *Stream) MayOffer() bool {
	return s.stage == Open && s.offered == 0 && s.oldRing == 0 && s.endReceived == 0 && s.endWanted&ResetEnd == 0
}

// Offer makes a RING record due, which offers a ring of the given size.
func (s *Stream) Offer(ring int) {
	if !s.MayOffer() {
		panic("credit: a ring that must not be offered")
	}
	s.offered, s.offerDue = uint64(ring), true
}

// Rings returns the sizes of this side's rings to which the peer may write, or that hold bytes
// that are not consumed; 0 for one whose memory is free. offered is the ring that the peer has not
// taken yet. Bytes from position base on lie in ring, those before it in old.
func (s *Stream) Rings() (ring, old, offered int, base uint64) {
	return int(s.ring), int(s.oldRing), int(s.offered), s.base
}

// CloseWrite ends the direction that this side sends, behind the bytes that were accepted. The
// peer is told first how many bytes were consumed: this side may be gone before more are.
func (s *Stream) CloseWrite() {
	if s.endWanted == 0 {
		s.endWanted = FinEnd
	}
	s.telling = s.consumed > s.advertised
}

// Reset ends the stream behind the bytes that were accepted, and tells the peer that this side
// reads no more. It may follow CloseWrite, as long as the peer's end has not come.
func (s *Stream) Reset() {
	switch {
	case s.stage == Dialing:
		s.over()
	case s.stage == Answering:
		s.stage = Refusing
		s.freeRings()
	case s.stage == Opening:
		s.stage = Abandoned
	case s.stage == Open:
		s.endWanted |= ResetEnd
	}
}

// Drop forgets the bytes that were accepted and not sent. The caller calls Reset next.
func (s *Stream) Drop() {
	s.dropped = s.dropped || s.accepted > s.sent
	s.accepted = s.sent
}

// Dropped reports whether bytes were accepted that will never be sent.
func (s *Stream) Dropped() bool { return s.dropped }

// Unread reports whether bytes were accepted that the peer may not have consumed, as far as its
// CREDITs tell.
func (s *Stream) Unread() bool { return s.dropped || s.accepted > s.credited }

// settle frees the rings that nothing will be written to and nothing read from,
// and notices the end of the stream.
func (s *Stream) settle() {
	if s.consumed >= s.base {
		s.oldRing = 0
	}
	if s.endReceived != 0 && s.consumed == s.received {
		s.ring = 0
	}
	if s.acked && s.ackSent {
		s.stage = Over
	}
}

func (s *Stream) over() {
	s.stage = Over
	s.freeRings()
}

func (s *Stream) freeRings() { s.ring, s.oldRing, s.offered = 0, 0, 0 }
