package credit

import "fmt"

// Stage is how far a stream is in its life at one side of a link.
//
//	Dialing    OPEN is to be sent                       → Opening, Over
//	Opening    OPEN has been sent and not been answered → Open, Abandoned, Over
//	Abandoned  the same; if it is accepted it is reset  → Open, Over
//	Answering  OPEN has come; ACCEPT is to be sent      → Open, Refusing
//	Refusing   OPEN has come; REFUSE is to be sent      → Over
//	Open       bytes may go both ways                   → Over
//	Over       neither side sends more about it: its number is free
//
// An open stream is over at a side when that side has sent its end and the
// FINACK for its peer's, and has received both from its peer.
type Stage uint8

// The stages. Those before Open have an order: AwaitsAnswer.
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

// Ends are the ends that one direction of a stream has had.
type Ends uint8

// The ends that there are.
const (
	FinEnd   Ends = 1 << iota // the bytes before it are all that there are
	ResetEnd                  // and its sender reads no more; may follow FinEnd
)

// Stream is the ledger of one stream at one side of a link: what may be sent,
// what is due to be said, and which rings the peer may still write to. It knows
// rings by their sizes, which are powers of two: package wire rejects a ring of the
// peer's that is not. Where they lie is its caller's business.
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
	ring        uint64 // size of the ring that the peer writes to; 0 when it is free
	oldRing     uint64 // size of the one before, while bytes in it are not consumed
	offered     uint64 // size of the one offered and not taken, or 0
	offerDue    bool   // RING has not been sent
	base        uint64 // position from which on bytes lie in ring
	endReceived Ends
	ackSent     bool // FINACK has been sent
}

// NewStream returns the ledger of a stream that this side dials, with a ring of
// the given size in bytes.
func NewStream(ring int) Stream {
	return Stream{stage: Dialing, incoming: incoming{ring: uint64(ring)}}
}

// AcceptStream returns the ledger of a stream that the peer has dialed with an
// OPEN that offers a ring of the size peerRing.
func AcceptStream(ring, peerRing int) Stream {
	return Stream{
		stage:    Answering,
		outgoing: outgoing{peerRing: uint64(peerRing)},
		incoming: incoming{ring: uint64(ring)},
	}
}

// RefuseStream returns the ledger of a stream that the peer has dialed and that
// cannot be.
func RefuseStream() Stream { return Stream{stage: Refusing} }

// Stage is how far the stream is.
func (s *Stream) Stage() Stage { return s.stage }

// AwaitsAnswer says whether this side dials the stream and the peer has not answered.
func (s *Stream) AwaitsAnswer() bool { return s.stage <= Abandoned }

// EndSent is which ends this side has sent.
func (s *Stream) EndSent() Ends { return s.endSent }

// EndReceived is which ends have come from the peer.
func (s *Stream) EndReceived() Ends { return s.endReceived }

// Closing says whether this side has sent an end, or will.
func (s *Stream) Closing() bool { return s.endWanted != 0 }

// Acked says whether the peer has acknowledged this side's end.
func (s *Stream) Acked() bool { return s.acked }

// Accepted is the position of the next byte to accept.
func (s *Stream) Accepted() uint64 { return s.accepted }

// Sent is the position of the next byte to send.
func (s *Stream) Sent() uint64 { return s.sent }

// Received is the position of the next byte to receive.
func (s *Stream) Received() uint64 { return s.received }

// Consumed is the position of the next byte to consume.
func (s *Stream) Consumed() uint64 { return s.consumed }

// Space is the number of bytes that can be accepted now.
func (s *Stream) Space() int {
	if s.stage != Open || s.endWanted != 0 {
		return 0
	}
	return int(max(s.credited, s.peerBase) + s.peerRing - s.accepted)
}

// Accept claims n bytes of the peer's ring, at most Space.
func (s *Stream) Accept(n int) {
	if n < 0 || n > s.Space() {
		panic(fmt.Sprintf("credit: accepting %d bytes with space for %d", n, s.Space()))
	}
	s.accepted += uint64(n)
}

// Pending is the number of bytes accepted and not yet sent.
func (s *Stream) Pending() int { return int(s.accepted - s.sent) }

// Next returns how many bytes the next data message may carry at most, all in
// one piece of the ring from position [Stream.Sent] on, and whether it is the
// first to a new ring: then it is due even with no bytes.
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

// Receive records a data message of n bytes, the first to a new ring if it is
// flagged as that. An error, here and below, means that the peer does not keep
// the protocol.
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

// Full says whether the peer can send nothing before more has been consumed, but to
// another ring.
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

// MayOffer says whether the peer can be offered another ring: one at a time,
// none that would have to wait for another to be drained, and none for a
// direction that the peer has ended or this side reads no more.
func (s *Stream) MayOffer() bool {
	return s.stage == Open && s.offered == 0 && s.oldRing == 0 && s.endReceived == 0 && s.endWanted&ResetEnd == 0
}

// Offer makes a RING for a ring of the given size due.
func (s *Stream) Offer(ring int) {
	if !s.MayOffer() {
		panic("credit: a ring that must not be offered")
	}
	s.offered, s.offerDue = uint64(ring), true
}

// Rings are the sizes of the rings of this side's that the peer may write to,
// or that hold bytes not consumed: 0 for one whose memory is free. Bytes from
// position base on lie in ring, those before in old.
func (s *Stream) Rings() (ring, old, offered int, base uint64) {
	return int(s.ring), int(s.oldRing), int(s.offered), s.base
}

// CloseWrite ends the direction that this side sends behind what has been
// accepted.
func (s *Stream) CloseWrite() {
	if s.endWanted == 0 {
		s.endWanted = FinEnd
	}
}

// Reset ends the stream behind what has been accepted, and tells the peer that this side
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
	case s.stage == Open && (s.endSent == 0 || s.endReceived == 0):
		s.endWanted |= ResetEnd
	}
}

// Drop forgets what has been accepted and not sent. Reset follows.
func (s *Stream) Drop() { s.accepted = s.sent }

// settle frees the rings that nothing will be written to and nothing read from,
// and notices the end of the stream.
func (s *Stream) settle() {
	if s.consumed >= s.base {
		s.oldRing = 0
	}
	if s.endReceived != 0 && s.consumed == s.received {
		s.ring = 0
	}
	if s.stage == Open && s.endSent != 0 && s.endReceived != 0 && s.acked && s.ackSent {
		s.stage = Over
	}
}

func (s *Stream) over() {
	s.stage = Over
	s.freeRings()
}

func (s *Stream) freeRings() { s.ring, s.oldRing, s.offered, s.offerDue = 0, 0, 0, false }
