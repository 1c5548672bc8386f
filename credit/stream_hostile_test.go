package credit

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hostileStreams is a world in which B says whatever it likes. A finds a breach,
// and the link is over, or keeps sound books. That a message is about another
// stream than B means is of no concern here.
type hostileStreams struct {
	*streamWorld
	bytes uint64 // that B writes to a stream before it has said enough
	ends  int    // that A knows of while B opens one more

	believes string // mutants: the breach that is none to A
}

// hostileAction is one of A's, or a message of B's.
type hostileAction struct {
	streamAction
	says streamMessage // if op is polls
}

func (a hostileAction) String() string {
	if a.op == polls {
		return fmt.Sprintf("B says %v", &a.says)
	}
	return a.streamAction.String()
}

func (w hostileStreams) start() *streamState {
	s := w.streamWorld.start()
	s[1] = streamSide{link: w.link()}
	return s
}

func (w hostileStreams) rest(*streamState) error { return nil }

func (w hostileStreams) choices(s *streamState, found func(act hostileAction, progress bool)) {
	w.streamWorld.choices(s, func(act streamAction, progress bool) {
		found(hostileAction{streamAction: act}, progress)
	})
	a := &s[0]
	if a.gone {
		return
	}
	say := func(m streamMessage) {
		if w.underWay > 0 {
			found(hostileAction{streamAction{op: polls}, m}, true)
			return
		}
		for data := range uint64(3) {
			for records := range uint64(3) {
				m.acked = Totals{data, records}
				if m.kind != dataMessage || m.acked == (Totals{}) {
					found(hostileAction{streamAction{op: polls}, m}, true)
				}
			}
		}
	}
	if w.underWay == 0 {
		say(streamMessage{kind: linkCredit})
	}
	record := func(r streamRecord) {
		say(streamMessage{kind: recordSend, count: 1, records: [2]streamRecord{r}})
	}
	record(streamRecord{}) // GOAWAY
	for number, k := range a.numbers[:w.numbers] {
		n := uint8(number)
		if k == 0 {
			if id, ok := a.freeID(w.ends); ok && w.dials == 0 {
				record(streamRecord{record: OpenRecord, number: n, id: id, place: 1, value: uint8(w.pool[0])})
			}
			record(streamRecord{record: FinRecord, number: n})
			say(streamMessage{kind: dataMessage, number: n, bytes: 1})
			continue
		}
		e := &a.ends[k-1]
		for r := OpenRecord; r <= FinAckRecord; r++ {
			for value := range uint8(4) {
				if rings := r == OpenRecord || r == AcceptRecord || r == RingRecord; rings && value&(value-1) == 0 == (value == 0) {
					continue // the decoder does not let it pass
				}
				record(streamRecord{r, n, e.id, 1, value})
			}
		}
		if e.ledger.received >= w.bytes {
			continue // enough
		}
		for bytes := range uint8(4) {
			say(streamMessage{kind: dataMessage, number: n, id: e.id, place: e.ring, bytes: bytes})
			say(streamMessage{kind: dataMessage, number: n, id: e.id, place: e.offered, bytes: bytes, newRing: true})
		}
	}
}

// freeID is an identity for one stream more, if the side knows of so many at most.
func (a *streamSide) freeID(most int) (id uint8, ok bool) {
	known := 0
	for k := range a.ends {
		if a.ends[k].id != 0 {
			known++
		} else if id == 0 {
			id = uint8(k + 1)
		}
	}
	return id, known <= most
}

func (w hostileStreams) do(s *streamState, act hostileAction) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if act.op == polls {
		s[0].inbox.push(act.says)
	}
	err = w.streamWorld.do(s, act.streamAction)
	s[1] = streamSide{link: w.link()}
	if w.believes != "" && err != nil && strings.Contains(err.Error(), w.believes) {
		s[0].believe(&act.says)
		return w.sound(&s[0])
	}
	if errors.As(err, new(breach)) {
		*s = streamState{{gone: true, link: w.link()}, s[1]}
		return nil
	}
	if err != nil || s[0].gone {
		return err
	}
	return w.sound(&s[0])
}

// believe is what a message does that is not checked.
func (a *streamSide) believe(m *streamMessage) {
	r := &m.records[0]
	s := &a.ends[a.numbers[m.number|r.number]-1].ledger
	switch {
	case m.kind == dataMessage:
		s.received += uint64(m.bytes)
	case r.record == CreditRecord:
		s.credited = uint64(r.value)
	case r.record == AcceptRecord:
		s.stage, s.peerRing = Open, uint64(r.value)
	case r.record == FinAckRecord:
		s.stage = Over
	}
}

// sound says what is wrong with a side's books.
func (w hostileStreams) sound(a *streamSide) error {
	owner := [ringPieces]uint8{}
	for k := range a.ends {
		e := &a.ends[k]
		if e.id == 0 {
			continue
		}
		if known := int(a.numbers[e.number]) == k+1; known != (e.ledger.stage != Over) {
			return fmt.Errorf("stream %d is %v, and its number in use: %v", e.id, e.ledger.stage, known)
		}
		ring, old, offered, _ := e.ledger.Rings()
		for place, size := range map[uint8]int{e.ring: ring, e.old: old, e.offered: offered} {
			switch {
			case place == 0:
			case owner[place-1] != 0:
				return fmt.Errorf("place %d is two streams'", place)
			case w.pool[place-1] != size:
				return fmt.Errorf("place %d of %d is a ring of %d", place, w.pool[place-1], size)
			default:
				owner[place-1] = e.id
			}
		}
		if err := e.ledger.sound(); err != nil {
			return fmt.Errorf("stream %d: %w", e.id, err)
		}
	}
	if owner != a.owner {
		return fmt.Errorf("memory is lost: %v has %v", owner, a.owner)
	}
	return nil
}

func (s *Stream) sound() error {
	held := s.received - s.consumed
	before := held - min(held, s.received-min(s.base, s.received)) // bytes in the old ring
	switch {
	case s.stage == Over && s.ring == 0 && held > 0, s.stage == Open && s.ring == 0 && s.endReceived == 0:
		return errors.New("has no ring")
	case s.advertised > s.consumed || s.consumed > s.received:
		return fmt.Errorf("received %d, consumed %d, advertised %d", s.received, s.consumed, s.advertised)
	case held-before > s.ring:
		return fmt.Errorf("%d bytes in a ring of %d", held-before, s.ring)
	case before > s.oldRing:
		return fmt.Errorf("%d bytes in the old ring of %d", before, s.oldRing)
	case s.stage != Open:
		return nil
	case s.credited > s.sent || s.sent > s.accepted || s.Space() < 0 || s.Space() > int(s.peerRing):
		return fmt.Errorf("accepted %d, sent %d, credited %d, room for %d in a ring of %d", s.accepted, s.sent, s.credited, s.Space(), s.peerRing)
	}
	return nil
}

// TestStreamsKeepSoundBooksWithALiar has the peer say anything at any time.
func TestStreamsKeepSoundBooksWithALiar(t *testing.T) {
	alone := func(w *streamWorld) { w.alone = true }
	for _, c := range []struct {
		name  string
		size  size
		world hostileStreams
	}{
		{"dialing", medium, hostileStreams{streamWorld: streams(1, alone, aNumberTwice, writing(1, 0), dialing(1)), bytes: 2}},
		{"dialing, GOAWAY", medium, hostileStreams{streamWorld: streams(1, alone, giveUpAndRefuse, goingAway, aborting, dialing(1)), bytes: 2}},
		{"dialing twice", large, hostileStreams{streamWorld: streams(1, alone, aNumberTwice, writing(0, 0)), bytes: 1}},
		{"answering", medium, hostileStreams{streamWorld: streams(1, alone, giveUpAndRefuse, everyEnd), bytes: 1}},
		{"answering, unread", large, hostileStreams{streamWorld: streams(1, alone, halving), bytes: 1, ends: 1}},
		{"answering, every end", large, hostileStreams{streamWorld: streams(1, alone, everyEnd, giveUpAndRefuse), bytes: 1, ends: 1}},
		{"offering", medium, hostileStreams{streamWorld: streams(1, alone, growing, writing(1, 0), offering(1)), bytes: 1}},
		{"offering, every end", large, hostileStreams{streamWorld: streams(1, alone, growing, everyEnd, aborting, writing(2, 0), offering(1)), bytes: 2}},
		{"offering twice", large, hostileStreams{streamWorld: streams(1, alone, growing, writing(0, 0), offering(2)), bytes: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.size.skip(t)
			start := time.Now()
			f := breadthFirst(c.world, 60_000_000)
			t.Logf("%v in %v", f, time.Since(start).Round(time.Millisecond))
			require.NoError(t, f.broken, "after %v", f.trace)
			assert.True(t, f.complete)
		})
	}
}

func halving(w *streamWorld) { w.halves = true }

// TestStreamsThatBelieveALiarAreFound leaves a check out, and expects that the
// books are found unsound.
func TestStreamsThatBelieveALiarAreFound(t *testing.T) {
	for _, c := range []struct{ breach, want string }{
		{"when credit ends at", "bytes in a ring of"},
		{"behind the end of the stream", "1 bytes in a ring of 0"},
		{"with 1 sent", "credited"},
		{"ACCEPT for a stream that is open", "accepted"},
		{"FINACK for no end", "its number in use"},
	} {
		t.Run(c.breach, func(t *testing.T) {
			w := streams(1, growing, writing(2, 0), func(w *streamWorld) { w.alone = true })
			f := breadthFirst(hostileStreams{streamWorld: w, bytes: 4, believes: c.breach}, 400_000)
			t.Logf("%v: %v, after %v", f, f.broken, f.trace)
			require.Error(t, f.broken)
			assert.Regexp(t, c.want, f.broken.Error())
		})
	}
}

func offering(rings int) func(*streamWorld) {
	return func(w *streamWorld) { w.offers = [2]int{rings, 0} }
}
