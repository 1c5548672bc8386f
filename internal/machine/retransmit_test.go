package machine

import (
	"slices"
	"testing"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/stretchr/testify/require"
)

// keepingAlive is a world whose ends probe, and have as many receives for data.
func keepingAlive(t *testing.T, receives int) *world {
	w := newWorld(make(pool), 2, false, [2][]op{})
	for _, e := range w.ends {
		e.m.cfg.KeepAlive, e.m.cfg.RecvQueue = time.Second, receives
		e.m.Begin()
		e.m.ledger = credit.NewLink(receives, receives)
		e.m.qp.posted = receives + credit.LinkControlReceives
		e.posted = e.m.qp.posted
		e.m.Start()
		e.carryOut()
	}
	return w
}

func (w *world) deliverAll(from int) {
	for len(w.ends[from].sent) > 0 {
		w.do(step{deliver, from, 0})
	}
}

// TestMessagesSentAgainLeaveSlotsForControl: the numbers of a credit and a probe of the queue pair before count as
// slots, so what is sent again takes all of them, and the next link credit finds none.
func TestMessagesSentAgainLeaveSlotsForControl(t *testing.T) {
	const receives = 8
	w := keepingAlive(t, receives)
	a, b := w.ends[0], w.ends[1]
	write1 := func(e *end) {
		e.m.Begin()
		require.Equal(t, 1, e.write(e.streams[0], 1))
		e.carryOut()
	}
	for range receives / credit.CreditsPerWindow { // A owes a link credit, which will be under way
		write1(b)
	}
	w.deliverAll(1)
	for range 6 { // as many as find a slot that is not reserved
		write1(a)
	}
	w.do(step{poll, 0, 0}) // A's credit
	for range 2 {          // nothing completes: a probe
		w.now = w.now.Add(time.Second)
		w.do(step{tick, 0, 0})
	}
	for range credit.RecordWindow {
		w.ends[0].m.Begin()
		w.dial([2][]op{})
	}
	require.Len(t, a.sent, 16)

	w.do(step{lose, 0, 0})
	for i := range w.ends {
		w.do(step{notice, i, 0})
		for len(w.ends[i].complete) > 0 {
			w.do(step{poll, i, 0})
		}
	}
	b.others, a.others = Exchange{}, Exchange{}
	w.do(step{adopt, 0, 0})
	w.do(step{adopt, 1, 0})
	for _, e := range w.ends { // adopt knows wire.MinReceives
		e.posted = receives + credit.LinkControlReceives
		e.m.qp.posted = e.posted
	}
	w.do(step{poll, 0, 0}) // the completion of the keys

	for range receives / credit.CreditsPerWindow {
		write1(b)
	}
	w.deliverAll(1)
	require.NotPanics(t, func() { w.do(step{poll, 0, 0}) })
}

// fails has the device of an end fail: what has arrived and was not polled is gone.
func (w *world) fails(end int) {
	e := w.ends[end]
	for _, e := range w.ends {
		e.broken, e.sent = true, nil
	}
	e.complete = nil
	e.noticed = true
	e.m.Begin()
	e.m.ConnectionChanged(fabric.ErrDeviceRemoved)
	e.m.Emptied()
	e.carryOut()
	e.complete = nil // nor does it flush anything
}

func (w *world) goOn() {
	for i, e := range w.ends {
		if !e.noticed {
			w.do(step{notice, i, 0})
		}
		for len(e.complete) > 0 {
			w.do(step{poll, i, 0})
		}
	}
	w.do(step{adopt, 0, 0})
	w.do(step{adopt, 1, 0})
}

// TestACloseIsWokenByTheRepetitionOfAnEnd: the device had completed FIN, then that of the peer failed before its host
// had FIN, so FIN is sent again. A Close that comes meanwhile waits for that, and nothing touches its stream.
func TestACloseIsWokenByTheRepetitionOfAnEnd(t *testing.T) {
	w := newWorld(make(pool), 2, false, [2][]op{{{closeWrite, 0}, {closeLinger, 0}}, {}})
	a := w.ends[0]
	s := a.streams[0].s
	w.do(step{act, 0, 0}) // FIN
	w.deliverAll(0)
	w.do(step{poll, 0, 0}) // its completion
	require.True(t, s.CloseReady())

	w.fails(1)
	w.goOn()
	w.do(step{act, 0, 0}) // Close
	require.False(t, s.CloseReady(), "FIN is sent again")
	w.deliverAll(0)
	a.m.Begin()
	a.m.Completed(a.complete)
	require.True(t, s.CloseReady())
	require.True(t, slices.Contains(a.m.Touched, s), "the Close is ready, and nobody wakes it")
}

// TestALoanComesBackThoughThePeerLies: between two losses, the peer says that it has received what has not been sent
// again.
func TestALoanComesBackThoughThePeerLies(t *testing.T) {
	w := keepingAlive(t, 8)
	a, b := w.ends[0], w.ends[1]
	buffer := a.register(4096)
	s := a.streams[0].s
	a.m.Begin()
	loan := a.m.Lend(buffer, nil)
	for i := range 6 {
		n, err := s.Room(100)
		require.NoError(t, err)
		s.AcceptLent(loan, 100*i, n)
		a.carryOut()
	}
	a.m.Written(loan)
	require.Len(t, a.sent, 6)
	w.do(step{lose, 0, 0})
	w.goOn()
	require.Len(t, a.sent, 5, "the sixth waits for a slot, which the keys have")
	for _, e := range w.ends {
		e.broken, e.sent = true, nil
	}
	w.do(step{notice, 0, 0})
	for len(a.complete) > 0 {
		w.do(step{poll, 0, 0})
	}
	a.epoch++
	a.broken, a.flushed = false, false
	a.m.Begin()
	err := a.m.Adopt(Exchange{Received: wire.Header{Data: 6}, Own: a.regions(a.epoch), Peer: b.regions(a.epoch), Posted: 22})
	a.carryOut()
	require.True(t, err != nil || loan.over(), "the peer says that it has all, and the buffer does not come back")
}

// TestABatchHasRoomForWhatIsSentNow: a driver that leaves a batch to whoever has the watch (maxRounds) may have a Write
// that has the watch: link.Link.poll forgets that it was called.
func TestABatchHasRoomForWhatIsSentNow(t *testing.T) {
	w := newWorld(make(pool), 0, false, [2][]op{})
	a := w.ends[0]
	m := a.m
	m.cfg.RecvQueue = 64
	m.send.slots = slotsOf(64)
	s := a.streams[0].s
	m.Begin()
	m.send.batch = m.send.batch[:0]
	for range MaxBatch {
		wr := m.push(m.send.slots.Post())
		wr.Op = fabric.Write
	}
	n, err := s.Room(1)
	require.NoError(t, err)
	if s.MaySendNow(n) {
		require.NotPanics(t, func() { s.SendNow(n, []byte{1}, nil) })
	}
}

func slotsOf(n int) credit.Slots { return credit.NewSlots(n, credit.LinkControlSends) }

// TestACloseHasNothingToWaitForBehindARefusal: a stream that is aborted before it is answered is refused, and over; the
// Close of its owner then waits for the delivery of an end that is never sent.
func TestACloseHasNothingToWaitForBehindARefusal(t *testing.T) {
	w := newWorld(make(pool), 0, false, [2][]op{})
	w.dial([2][]op{})
	w.deliverAll(0)
	b := w.ends[1]
	b.m.Begin()
	b.m.Post() // another call posts meanwhile
	b.m.Completed(b.complete)
	b.complete = nil
	b.carryOut()
	s := b.streams[1].s
	require.NoError(t, s.Abort())
	s.Aborted()
	b.m.Posted(nil)
	b.carryOut()
	w.deliverAll(1)
	w.do(step{poll, 1, 0})
	require.Equal(t, credit.Over, s.ledger.Stage())
	c, err := s.Close(false)
	require.NoError(t, err)
	c.End()
	b.carryOut()
	require.True(t, s.CloseReady())
}

// TestABatchOfWhatIsSentAgainHasRoomForControl: a driver leaves a batch, of what is sent again and no more, to whoever
// has the watch (maxRounds), and a link credit is due then.
func TestABatchOfWhatIsSentAgainHasRoomForControl(t *testing.T) {
	const receives = 64
	w := keepingAlive(t, receives)
	for _, e := range w.ends {
		e.m.send.slots = slotsOf(receives)
	}
	a := w.ends[0]
	for range MaxBatch {
		for _, e := range w.ends {
			e.m.Begin()
			require.Equal(t, 1, e.write(e.streams[0], 1))
			e.carryOut()
		}
	}
	w.deliverAll(1)

	a.m.Begin()
	a.m.unacked.again = a.m.unacked.len()
	a.m.send.slots.Restart(a.m.unacked.at(0).id, 0)
	require.True(t, a.m.HasBatch())
	a.m.Completed(a.complete)
	require.True(t, a.m.ledger.CreditDue())
	require.NotPanics(t, func() { a.m.HasBatch() })
	require.NotPanics(t, func() { a.m.HasBatch() })
}
