package credit

import "fmt"

// Record is what a record of a control message is for.
type Record uint8

// The records, by their numbers on the wire. All but GoAwayRecord are about a stream.
const (
	NoRecord     Record = iota
	OpenRecord          // asks for a stream; has a ring for the peer to write to
	AcceptRecord        // answers OPEN: the stream begins; has a ring for the peer to write to
	RefuseRecord        // answers OPEN: the stream does not begin; has the reason
	CreditRecord        // how many bytes of the stream its reader has consumed
	RingRecord          // offers the peer another ring to write to
	FinRecord           // the sender's half of the stream ends after so many bytes
	ResetRecord         // as FIN, and the sender reads no more
	FinAckRecord        // the peer's FIN or RESET has been received
	GoAwayRecord        // no stream begins any more on the link
)

func (r Record) String() string {
	names := [...]string{"none", "OPEN", "ACCEPT", "REFUSE", "CREDIT", "RING", "FIN", "RESET", "FINACK", "GOAWAY"}
	if int(r) >= len(names) {
		return fmt.Sprintf("record of type %d", uint8(r))
	}
	return names[r]
}

// Due returns the record to send next, or NoRecord.
func (s *Stream) Due() Record {
	switch s.stage {
	case Dialing:
		return OpenRecord
	case Answering:
		return AcceptRecord
	case Refusing:
		return RefuseRecord
	case Open:
		return s.dueOpen()
	}
	return NoRecord
}

// dueOpen has CREDIT last, but for the one that CloseWrite asks for: it may be due again and again
// while the others, each of which is due once, wait for their turn.
func (s *Stream) dueOpen() Record {
	switch {
	case s.offerDue:
		return RingRecord
	case s.telling && s.creditDue():
		return CreditRecord
	case s.endDue() != NoRecord:
		return s.endDue()
	case s.endReceived != 0 && !s.ackSent:
		return FinAckRecord
	case s.creditDue():
		return CreditRecord
	}
	return NoRecord
}

// endDue is the end that is to be sent next, behind the last byte.
func (s *Stream) endDue() Record {
	switch {
	case s.accepted > s.sent:
		return NoRecord
	case s.endWanted&ResetEnd != 0 && s.endSent&ResetEnd == 0 && (s.endSent == 0 || s.endReceived == 0):
		return ResetRecord
	case s.endWanted == FinEnd && s.endSent == 0:
		return FinRecord
	}
	return NoRecord
}

func (s *Stream) creditDue() bool {
	return s.endReceived == 0 && s.endWanted&ResetEnd == 0 && (s.telling || s.CreditGivesRoom())
}

// CreditGivesRoom reports whether so much was consumed that CREDIT is due for the peer to go on. If
// it is not, CREDIT is sent only for the peer to know, once this side has ended its direction.
func (s *Stream) CreditGivesRoom() bool {
	return s.consumed-s.advertised >= max(s.ring/CreditsPerWindow, 1)
}

// SendRecord records that r, which is due, is being sent, and returns the position or the size of
// the ring that it carries.
func (s *Stream) SendRecord(r Record) uint64 {
	if r == NoRecord || r != s.Due() {
		panic(fmt.Sprintf("credit: %v is sent when %v is due", r, s.Due()))
	}
	switch r {
	case OpenRecord:
		s.stage = Opening
		return s.ring
	case AcceptRecord:
		s.stage = Open
		return s.ring
	case RefuseRecord:
		s.over()
		return 0
	case CreditRecord:
		s.advertised, s.telling = s.consumed, false
		return s.advertised
	case RingRecord:
		s.offerDue = false
		return s.offered
	case FinRecord:
		s.endSent |= FinEnd
	case ResetRecord:
		s.endSent |= ResetEnd
	case FinAckRecord:
		s.ackSent = true
		s.settle()
		return 0
	}
	s.nextRing = 0
	s.settle()
	return s.sent
}

// ReceiveRecord records that the record r about the stream has come; value is the position or the
// size of a ring that it carries. The error means that the peer broke the protocol.
func (s *Stream) ReceiveRecord(r Record, value uint64) error {
	if !s.stage.expects(r) {
		return fmt.Errorf("%v for a stream that is %v", r, s.stage)
	}
	switch r {
	case AcceptRecord:
		if s.stage == Abandoned {
			s.endWanted = ResetEnd
		}
		s.stage, s.peerRing = Open, value
		return nil
	case RefuseRecord:
		s.over()
		return nil
	case CreditRecord:
		return s.receiveCredit(value)
	case RingRecord:
		return s.receiveRing(value)
	case FinRecord:
		return s.receiveEnd(FinEnd, value)
	case ResetRecord:
		return s.receiveEnd(ResetEnd, value)
	case FinAckRecord:
		if s.endSent == 0 || s.acked {
			return fmt.Errorf("%v for no end", r)
		}
		s.acked = true
		s.settle()
		return nil
	}
	return fmt.Errorf("unexpected %v", r)
}

// expects reports whether a record may come in the stage.
func (s Stage) expects(r Record) bool {
	if r == AcceptRecord || r == RefuseRecord {
		return s == Opening || s == Abandoned
	}
	return s == Open
}

// behind says what is wrong with a record about the direction that this side sends, if the
// peer has sent its last about it.
func (s *Stream) behind(r Record) error {
	switch {
	case s.acked:
		return fmt.Errorf("%v behind FINACK", r)
	case s.endReceived&ResetEnd != 0:
		return fmt.Errorf("%v behind RESET", r)
	}
	return nil
}

func (s *Stream) receiveCredit(consumed uint64) error {
	if err := s.behind(CreditRecord); err != nil {
		return err
	}
	if consumed <= s.credited || consumed > s.sent {
		return fmt.Errorf("CREDIT for %d bytes after %d, with %d sent", consumed, s.credited, s.sent)
	}
	s.credited = consumed
	return nil
}

func (s *Stream) receiveRing(size uint64) error {
	if err := s.behind(RingRecord); err != nil {
		return err
	}
	if s.endSent != 0 {
		return nil // nothing will be written to it
	}
	if s.nextRing != 0 {
		return fmt.Errorf("a second RING before the first is taken")
	}
	s.nextRing = size
	return nil
}

func (s *Stream) receiveEnd(end Ends, total uint64) error {
	switch {
	case total != s.received:
		return fmt.Errorf("the end of the stream after %d bytes, with %d received", total, s.received)
	case s.endReceived >= end:
		return fmt.Errorf("a second end of the stream")
	case s.endReceived != 0 && s.acked:
		return fmt.Errorf("RESET behind FINACK")
	}
	s.endReceived |= end
	s.offered, s.offerDue = 0, false
	if end == ResetEnd {
		s.Drop()
		s.nextRing = 0
		s.endWanted = ResetEnd
	}
	s.settle()
	return nil
}
