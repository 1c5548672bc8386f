package link

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// streamsOn makes so many streams on a link: their ends on both sides.
func streamsOn(t testing.TB, n *sim.Network, many int) (clients, servers []*Stream) {
	t.Helper()
	cfg := testConfig
	cfg.KeepAlive, cfg.ResumeTimeout = 10*time.Second, 30*time.Second
	c, s, b := connectLink(t, n, cfg, cfg)
	clients, servers = append(clients, c), append(servers, s)
	for len(clients) < many {
		c, err := c.Link().Open(context.Background())
		require.NoError(t, err)
		clients, servers = append(clients, c), append(servers, b.accept())
	}
	return clients, servers
}

// asked is an endpoint during whose Close somebody asks for what the link has.
type asked struct {
	fabric.Endpoint
	link  *Link
	asked sync.WaitGroup
}

func (e *asked) Close() error {
	e.asked.Go(func() { e.link.freeUnneeded() })
	return nil
}

// Nothing orders the two but the lock, as the race detector sees.
func TestALinkIsAskedForMemoryWhileItIsTakenDown(t *testing.T) {
	e := &asked{}
	b := budget.New(func() budget.Limits { return budget.Limits{Registered: 1 << 20, Locked: 1 << 20} })
	l := &Link{ep: e, life: life{stage: ended}, memory: linkMemory{account: &budget.Account{Budget: b}}}
	e.link = l
	l.watch.timer = time.NewTimer(time.Hour)
	require.NoError(t, l.memory.account.Reserve(4096))
	l.tearDown()
	e.asked.Wait()
	require.Zero(t, inUse(b))
}

// closing is an endpoint whose Close takes its time.
type closing struct {
	fabric.Endpoint
	meanwhile func()
}

func (e closing) Close() error {
	e.meanwhile()
	return nil
}

// Until the memory of a link has been given back, whoever lacks it is told that some
// is about to be; but the link is not up any more.
func TestMemoryOfALinkThatIsTakenDownIsAboutToBeHad(t *testing.T) {
	b := budget.New(func() budget.Limits { return budget.Limits{Registered: 4096, Locked: 4096} })
	l := &Link{cfg: Setup{Budget: b}, life: life{stage: ended}, memory: linkMemory{account: &budget.Account{Budget: b}}}
	l.watch.timer = time.NewTimer(time.Hour)
	require.NoError(t, l.memory.account.Reserve(4096))
	other := budget.Account{Budget: b}
	closed := false
	l.ep = closing{meanwhile: func() {
		closed = true
		err := reclaimOn(other.Reserve(1), within(b))
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.True(t, err.(*budget.ShortageError).Releasing)
		List() // which would ask the endpoint
	}}
	l.enlist()
	l.tearDown()
	require.True(t, closed)
	require.NoError(t, other.Reserve(1))
	require.Empty(t, within(b))
}

// TestAMessageThatTheDeviceRefuses is sent again over another queue pair.
func TestAMessageThatTheDeviceRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		clients, servers := streamsOfBoth(t, n, resuming(n), resuming(n), 1)
		var refused atomic.Bool
		n.SetFaults(sim.Faults{Send: func(*sim.Endpoint, *fabric.WorkRequest) fabric.Status {
			if refused.CompareAndSwap(false, true) {
				return fabric.RemoteInvalidRequest
			}
			return fabric.OK
		}})
		require.NoError(t, exchange(clients[0], servers[0], 1<<20, 1))
		require.EqualValues(t, 1, clients[0].link.Stats().Moves)
		endAll(t, n, append(clients, servers...)...)
	})
}

// TestClosingWhatThePeerHasClosedDuringABreak: the peer does not wait for a stream that it
// has ended itself, so it is gone when there is a path again.
func TestClosingWhatThePeerHasClosedDuringABreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		active, passive := resuming(n), resuming(n)
		active.KeepAlive, passive.KeepAlive = -1, -1 // or the peer would notice the break in time
		passive.LinkIdle = time.Second
		clients, servers := streamsOfBoth(t, n, active, passive, 1)
		require.NoError(t, writeAll(servers[0], []byte("all")))
		require.NoError(t, servers[0].Close(time.Minute))
		n.Cut(true)
		ended := make(chan error, 1)
		go func() { ended <- clients[0].Close(time.Minute) }()
		<-servers[0].link.Gone()
		n.Cut(false)
		require.NoError(t, <-ended)
		endAll(t, n)
	})
}
