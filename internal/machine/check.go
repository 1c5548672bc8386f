package machine

import (
	"fmt"

	"github.com/ringnet/ringnet/credit"
)

// Amiss says what of a link is as it may not be at any time; "": nothing.
func (l *Link) Amiss() string {
	q, t := &l.send, &l.streams
	switch used := l.ledger.Unacknowledged(); {
	case l.stage == Closed:
	case l.qp.posted < 0 || l.qp.posted > l.cfg.RecvQueue+credit.LinkControlReceives:
		return fmt.Sprintf("%d receives posted", l.qp.posted)
	case q.slots.Outstanding() > q.slots.Depth():
		return "more work requests than slots"
	case l.path.resumes && l.stage == Up && l.unacked.len() != used:
		return fmt.Sprintf("%d messages in the retransmit queue, of which %d are not acknowledged", l.unacked.len(), used)
	case l.unacked.again > l.unacked.len():
		return "more to be sent again than there is"
	case t.live < 0 || t.owned < 0 || t.unanswered < 0 || t.opening < 0:
		return "streams that never were"
	case l.rings.Spare() > 0 && len(l.grown) == 0:
		return "a ring is kept to shrink to, and none has grown"
	case l.stage == Up && !l.alarms.isSet(shrinkAlarm) && (!l.Trim && l.rings.HasEmpty() || len(l.grown) > 0):
		return "memory may be of no use, and nothing looks for it"
	case l.stage == Up && !l.alarms.isSet(shrinkAlarm) && len(q.staging.areas) > 1 && !l.Trim:
		return "staging memory may be of no use, and nothing looks for it"
	}
	return ""
}

// RingMemory is how many bytes of memory for rings a stream has.
func (s *Stream) RingMemory() int {
	return s.inbox.held.Size() + s.inbox.drained.Size() + s.inbox.offered.Size()
}

// String says how far the link is.
func (l *Link) String() string {
	q := &l.send
	return fmt.Sprintf("stage %d (%v), dialed %t, peer gone %t, %d streams of which %d are owned, leaving %+v, %d moves, %d receives posted, "+
		"%d work requests under way, %d of them not signaled, %d messages unacknowledged, %d again, %d of %d bytes of staging free, %d short, posting %t",
		l.stage, l.cause, l.active, l.qp.peerGone, l.streams.live, l.streams.owned, l.goingAway, l.stats.Moves, l.qp.posted,
		q.slots.Outstanding(), q.slots.Unsignaled(), l.ledger.Unacknowledged(), l.unacked.again, q.staging.in.ring.Free(), q.staging.in.ring.Size(), q.stagingLine.Len(), q.posting)
}

// String says how far the stream is.
func (s *Stream) String() string {
	return fmt.Sprintf("stream %d (%v, use %d), of %d bytes accepted, %d pending, room for %d, place in line %d, sending %t, %d received, %d not read",
		s.number, s.ledger.Stage(), s.use, s.ledger.Accepted(), s.ledger.Pending(), s.ledger.Space(), s.line, s.inDataLine, s.ledger.Received(), s.ledger.Unconsumed())
}

// WaitsInVain says which Write waits for staging memory when all of it is free, so that nothing will wake
// it. What is Touched has looked.
func (l *Link) WaitsInVain() string {
	if q := &l.send; l.stage == Up && q.staging.first == q.staging.next {
		for _, s := range q.stagingLine.items[q.stagingLine.head:] {
			if s.line == inLine {
				return fmt.Sprintf("the Write of stream %d waits for staging memory, all of which is free", s.number)
			}
		}
	}
	return ""
}
