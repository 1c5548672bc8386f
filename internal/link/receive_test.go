package link

import (
	"io"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// hoarder gives back only the receives that had been posted before the queue pair went to
// ERR: not every device flushes what is posted later.
type hoarder struct {
	fabric.Endpoint
	completions []fabric.Completion
	kept        int // receives
}

func (e *hoarder) Poll(c []fabric.Completion) (int, error) {
	n := copy(c, e.completions)
	e.completions = e.completions[n:]
	return n, nil
}

func (e *hoarder) PostRecv(n int) error {
	e.kept += n
	return nil
}

func (e *hoarder) Disconnect() error { return nil }
func (e *hoarder) Wake()             {}

// TestNoReceiveIsPostedOnceTheQueuePairFlushes has messages come in one batch with the
// first flushed receive, and those of data be acknowledged afterwards. What is posted then
// would be waited for until drainTime is over.
func TestNoReceiveIsPostedOnceTheQueuePairFlushes(t *testing.T) {
	credits := make([]byte, wire.HeaderSize)
	wire.Header{Data: 1}.Put(credits)
	message := fabric.Completion{Recv: true, Op: fabric.Send, Len: len(credits), Data: credits}
	flushed := fabric.Completion{Recv: true, Status: fabric.Flushed}
	e := &hoarder{completions: []fabric.Completion{message, flushed}}
	l := &Link{ep: e, streams: streamTable{owned: 1}, life: life{gone: make(chan struct{})}, ledger: credit.NewLink(4, 4)}
	l.ledger.SendData()
	l.qp.posted, l.qp.spent = 3, 1
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pollCompletions()
	require.NoError(t, l.cause, "nobody has said why")
	l.repost()
	require.Zero(t, e.kept)
	require.Equal(t, 1, l.qp.posted)
	l.qp.drain.Stop()
}

// cramped is an endpoint that cannot map the peer's memory.
type cramped struct{ hoarder }

func (e *cramped) Reach(uint64, uint32, int) error {
	return &budget.ShortageError{Of: budget.AddressSpace}
}

// A peer whose ring this side has no addresses for has broken nothing.
func TestARingThatCannotBeMappedIsNoBreach(t *testing.T) {
	b := make([]byte, wire.HeaderSize+wire.RecordSize)
	wire.Header{}.Put(b)
	wire.Record{Type: credit.OpenRecord, Port: 7, Ring: wire.RingPlace{Size: wire.MinRing}}.Put(b[wire.HeaderSize:])
	message := fabric.Completion{Recv: true, Op: fabric.Send, Len: len(b), Data: b}
	l := &Link{ep: &cramped{hoarder{completions: []fabric.Completion{message}}}, streams: streamTable{owned: 1}, life: life{gone: make(chan struct{})}, ledger: credit.NewLink(4, 4)}
	l.qp.posted = 3
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pollCompletions()
	require.ErrorIs(t, l.cause, syscall.ENOMEM)
	require.NotErrorIs(t, l.cause, syscall.EPROTO)
	l.qp.drain.Stop()
}

// TestRecordsThatWereDueWhenReceivesCouldNotBePosted has a device refuse receives, so that
// the link loses its queue pair, when a stream is about to say that it ends.
func TestRecordsThatWereDueWhenReceivesCouldNotBePosted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		clients, servers := streamsOfBoth(t, n, resuming(n), resuming(n), 1)
		c, s := clients[0], servers[0]
		require.NoError(t, exchange(s, c, 1, 1)) // one receive more is to be posted
		refuse, before := true, endpointOf(c.link)
		n.SetFaults(sim.Faults{PostRecv: func(e *sim.Endpoint, _ int) error {
			if refuse && e == before {
				refuse = false
				return fabric.ErrQueuePair
			}
			return nil
		}})
		require.NoError(t, c.CloseWrite())
		_, err := s.Read(make([]byte, 1), deadline.New())
		require.ErrorIs(t, err, io.EOF)
		require.False(t, refuse)
		endAll(t, n, c, s)
	})
}
