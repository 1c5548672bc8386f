package link

import (
	"context"
	"fmt"
	"io"
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
	cfg.KeepAlive, cfg.Resume = 10*time.Second, 30*time.Second
	c, s, b := connectLink(t, n, cfg, cfg)
	clients, servers = append(clients, c), append(servers, s)
	for len(clients) < many {
		c, err := c.Link().Open(context.Background())
		require.NoError(t, err)
		clients, servers = append(clients, c), append(servers, b.accept())
	}
	return clients, servers
}

// When a link dies, each of the streams on it ends as it would alone: what had
// arrived is read, and then comes the error; and closing all takes no longer than
// closing one.
func TestDeathOfALinkEndsItsStreams(t *testing.T) {
	const many = 100
	for _, death := range []struct {
		name string
		kill func(n *sim.Network, ours, peers *sim.Endpoint)
		want error
	}{
		{"peer killed", func(_ *sim.Network, _, peers *sim.Endpoint) { peers.Kill() }, syscall.ECONNRESET},
		{"cable cut", func(n *sim.Network, _, _ *sim.Endpoint) { n.Cut(true) }, syscall.ETIMEDOUT},
		{"device removed", func(n *sim.Network, _, _ *sim.Endpoint) { n.RemoveDevice() }, syscall.ENETDOWN},
		{"queue pair in error", func(_ *sim.Network, ours, _ *sim.Endpoint) { ours.Fail(fabric.ErrQueuePair) }, syscall.ECONNRESET},
	} {
		t.Run(death.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(far)
				clients, servers := streamsOn(t, n, many)
				for i, s := range servers {
					require.NoError(t, writeAll(s, []byte(fmt.Sprint(i))))
				}
				time.Sleep(time.Second)
				var readers sync.WaitGroup
				for i, c := range clients {
					readers.Go(func() {
						got, err := readAll(c)
						if string(got) != fmt.Sprint(i) {
							t.Errorf("stream %d read %q", i, got)
						}
						require.ErrorIs(t, err, death.want)
					})
				}
				start := time.Now()
				death.kill(n, clients[0].link.ep.(*sim.Endpoint), servers[0].link.ep.(*sim.Endpoint))
				readers.Wait()
				require.Less(t, time.Since(start), 20*time.Second)
				start = time.Now()
				for i := range clients {
					_, err := clients[i].Write([]byte("x"), unlimited())
					require.Error(t, err)
					_ = clients[i].Close(10 * time.Second)
				}
				require.Less(t, time.Since(start), 11*time.Second, "closing all")
				start = time.Now()
				var closing sync.WaitGroup
				for i := range servers {
					closing.Go(func() { _ = servers[i].Close(10 * time.Second) })
				}
				closing.Wait()
				require.Less(t, time.Since(start), 21*time.Second, "closing all")
				time.Sleep(2 * time.Minute)
				require.Zero(t, n.Open(), "endpoints left open")
			})
		})
	}
}

// A stream that nobody reads is nobody else's concern when its owner closes it
// while its peer goes on.
func TestCloseOfOneStreamLeavesTheOthers(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		clients, servers := streamsOn(t, n, 3)
		require.NoError(t, writeAll(clients[1], []byte("never read")))
		time.Sleep(time.Second)
		require.NoError(t, servers[1].Close(time.Second))
		_, err := readAll(clients[1])
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.NoError(t, writeAll(clients[2], []byte("read")))
		b := make([]byte, 4)
		_, err = servers[2].Read(b, unlimited())
		require.NoError(t, err)
		require.Equal(t, "read", string(b))
		// Half closed for ever: reset when the patience of the one is over.
		require.NoError(t, servers[2].Close(time.Second))
		_, err = clients[2].Read(b, unlimited())
		require.Equal(t, io.EOF, err)
		time.Sleep(2 * patience)
		_, err = clients[2].Write(b, unlimited())
		require.ErrorIs(t, err, syscall.EPIPE)
		for _, s := range []*Stream{clients[0], clients[1], clients[2], servers[0]} {
			require.NoError(t, s.Close(time.Second))
		}
	})
}

// asked is an endpoint during whose Close somebody asks for what the link has.
type asked struct {
	fabric.Endpoint
	link  *Link
	asked sync.WaitGroup
}

func (e *asked) Close() error {
	e.asked.Go(func() { e.link.giveUp() })
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
	l := &Link{cfg: Config{Budget: b}, life: life{stage: ended}, memory: linkMemory{account: &budget.Account{Budget: b}}}
	l.watch.timer = time.NewTimer(time.Hour)
	require.NoError(t, l.memory.account.Reserve(4096))
	other := budget.Account{Budget: b}
	closed := false
	l.ep = closing{meanwhile: func() {
		closed = true
		err := reclaimOn(other.Reserve(1), within(b))
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.True(t, err.(*budget.ShortageError).Passing)
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
		passive.Idle = time.Second
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
