package machine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// A handed-over buffer makes no other stream's requests signaled, and does not keep the staging memory of what they
// write: they are as without it, whether they write before it or behind it.
func TestAHandedOverBufferMakesNoOtherStreamsRequestsSignaled(t *testing.T) {
	for _, tt := range []struct {
		name  string
		order []int // of the streams: 0 hands a buffer over
	}{
		{"before", []int{1, 0}},
		{"behind", []int{0, 1}},
		{"on both sides", []int{1, 0, 1}},
		{"between two", []int{0, 1, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, size := range []int{100, worldRing / 2} { // and a buffer that has several messages
				_, alone, _ := signaledOf(t, tt.order, 0)
				lent, beside, loans := signaledOf(t, tt.order, size)
				require.LessOrEqual(t, beside, alone, "of the other stream's requests")
				require.Equal(t, loans, lent, "one of each buffer's requests is")
			}
		})
	}
}

// signaledOf counts the signaled requests of two streams, the first of which hands buffers of a size over, or
// none, while the second writes, in rounds in each of which they have their turns, and the peer then reads all.
func signaledOf(t *testing.T, order []int, size int) (first, second, loans int) {
	const rounds = 48
	w := newWorld(make(pool), 0, false, [2][]op{})
	w.dial([2][]op{})
	w.readAll(func() {})
	a := w.ends[0]
	var signaled [2]int
	counted := a.m.send.slots.Next()
	count := func() {
		for _, wr := range a.sent {
			if wr.ID < counted {
				continue
			}
			counted = wr.ID + 1
			if number, _, err := wire.DecodeDataImmediate(wr.Imm); wr.Op == fabric.WriteImm && wr.Signaled {
				require.NoError(t, err)
				signaled[number]++
			}
		}
	}
	lend := func(s *Stream, memory *memory) {
		a.m.Begin()
		loan := a.m.Lend(memory, nil)
		for done := 0; done < size; {
			n, err := s.Room(size - done)
			require.NoError(t, err)
			require.NotZero(t, n)
			s.AcceptLent(loan, done, n)
			done += n
		}
		a.m.Written(loan)
		loans++
	}
	buffer := a.register(worldRing)
	for range rounds {
		for _, i := range order {
			s := a.streams[i].s
			switch {
			case i == 1:
				a.m.Begin()
				n, err := s.Room(100)
				require.NoError(t, err)
				s.Append(n)
			case size > 0:
				lend(s, buffer)
			}
		}
		a.carryOut()
		count()
		w.readAll(count)
		require.Empty(t, a.m.send.loans, "what has completed is its owner's again")
	}
	return signaled[0], signaled[1], loans
}

// readAll has everything arrive and be polled, and the applications read it, until nothing is left to do. It calls
// each after each event.
func (w *world) readAll(each func()) {
	for busy := true; busy; {
		busy = false
		for i, e := range w.ends {
			for len(e.sent)+len(e.complete) > 0 {
				busy = true
				if len(e.sent) > 0 {
					w.do(step{deliver, i, 0})
				} else {
					w.do(step{poll, i, 0})
				}
				each()
			}
			for _, t := range e.streams {
				e.m.Begin()
				t.s.Taken(t.s.Unread())
				e.carryOut()
				each()
			}
		}
	}
}

// The peer resets a stream that has sent a part of a buffer, unsignaled, and waits for receives of the peer's to send
// the rest. The buffer is returned when that part is sent: the end of the stream is signaled.
func TestABufferIsReturnedThatIsNotSentToItsEnd(t *testing.T) {
	w := newWorld(make(pool), 0, false, [2][]op{{}, {{closeNow, 0}}})
	a := w.ends[0]
	require.Zero(t, a.m.send.slots.Next())
	a.m.send.slots = credit.NewSlots(64, credit.LinkControlSends) // so that these messages are not signaled for slots
	buffer := a.register(worldRing)
	a.m.Begin()
	loan := a.m.Lend(buffer, nil)
	for i := range wire.MinReceives + 1 {
		a.streams[0].s.AcceptLent(loan, 2*i, 1) // in different pieces
	}
	a.m.Written(loan)
	a.carryOut()
	require.Equal(t, wire.MinReceives, len(a.sent))
	for _, wr := range a.sent {
		require.False(t, wr.Signaled)
	}
	w.do(step{act, 1, 0})
	w.deliverAll(1)
	w.do(step{poll, 0, 0})
	require.False(t, loan.returned)
	w.deliverAll(0)
	w.do(step{poll, 0, 0})
	require.True(t, loan.returned)
}
