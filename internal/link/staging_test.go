package link

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// closeAtOnce closes streams, whatever they hold.
func closeAtOnce(streams ...[]*Stream) {
	for _, s := range slices.Concat(streams...) {
		_ = s.Close(0)
	}
}

// waitsInVain says which Write waits for staging memory when all of it is free, so that nothing will wake
// it. Called with mu held, while no goroutine can go on.
func (l *Link) waitsInVain() string {
	return l.m.WaitsInVain()
}

// Streams write at once, and share little staging memory. Some of those whose turn it is do not use
// it: their deadlines have passed, their peers have gone, or what they write goes inline by then. The
// others have to have it: a Write that waits for ever stops virtual time.
func TestStagingMemoryIsForWhoeverWaits(t *testing.T) {
	cfg := testConfig
	cfg.SendBuffer, cfg.SendQueue = 4<<10, minSendQueue
	for seed := range uint64(times(100)) {
		r := rand.New(rand.NewPCG(seed, 0))
		onLink(t, sim.Link{Latency: 20 * time.Microsecond}, cfg, testConfig, 8, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
			for _, s := range servers {
				go func() { _, _ = io.Copy(io.Discard, reader{s}) }()
			}
			for range 50 {
				var all sync.WaitGroup
				for i, c := range clients {
					d, size := deadline.New(), 1+r.IntN(1<<(1+r.IntN(13)))
					switch x := r.IntN(20); {
					case x < 8:
						d.Set(time.Now().Add(time.Duration(r.IntN(200_000))))
					case x == 8:
						all.Go(func() { time.Sleep(20 * time.Microsecond); _ = servers[i].Close(0) })
					}
					all.Go(func() { _, _ = c.Write(make([]byte, size), d) })
				}
				all.Wait()
			}
			closeAtOnce(clients, servers)
		})
	}
}

// A Write has filled the staging memory, in four messages, and others wait. The deadline of the first four of
// those passes in the moment in which the memory becomes free.
func TestWritesWhoseDeadlinePassesWhenItIsTheirTurnLeaveItToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig
		cfg.SendBuffer = 16 << 10
		n := sim.New(sim.Link{})
		passes, soon := deadline.New(), deadline.New()
		f := &hooked{Fabric: n, sent: func() { passes.Set(time.Unix(1, 0)) }}
		clients, servers := streamsOfBoth(t, f, cfg, testConfig, 6)
		ep := endpointOf(clients[0].link)
		ep.HoldSends(true)
		passes.Set(time.Time{})
		soon.Set(time.Now().Add(time.Minute))
		results := make([]chan error, len(clients))
		for i, d := range []*deadline.Deadline{soon, passes, passes, passes, passes, soon} {
			results[i] = make(chan error, 1)
			go func() {
				_, err := clients[i].Write(make([]byte, cfg.SendBuffer), d)
				results[i] <- err
			}()
			synctest.Wait() // it has filled the memory, or waits in line
		}
		ep.HoldSends(false)
		for i, d := range []error{nil, os.ErrDeadlineExceeded, os.ErrDeadlineExceeded, os.ErrDeadlineExceeded, os.ErrDeadlineExceeded, nil} {
			require.Equal(t, d, <-results[i])
		}
		closeAtOnce(clients, servers)
		endAll(t, n)
	})
}

// The stream comes to its end whose Write has filled the staging memory and copies to it.
func TestStagingMemoryThatIsNotUsedAfterAllIsForThoseWhoWait(t *testing.T) {
	cfg := testConfig
	cfg.SendBuffer = firstStaging // so that it does not grow
	onLink(t, sim.Link{}, cfg, testConfig, 2, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
		l := clients[0].link
		l.lock()
		number, _, _ := clients[0].m.Stage(l.cfg.SendBuffer)
		l.unlock()
		written := make(chan error, 1)
		go func() { written <- writeAll(clients[0], make([]byte, 4<<10)) }()
		require.NoError(t, servers[1].Close(0))
		synctest.Wait()
		require.Empty(t, written)
		l.lock()
		_, err := clients[1].m.Staged(number, l.cfg.SendBuffer)
		l.unlock()
		require.Error(t, err)
		require.NoError(t, <-written)
		closeAtOnce(clients, servers)
	})
}

// The peer offers a smaller ring while a Write copies to the staging memory, and the link goes over to that:
// there is no room any more for what the Write has copied.
func TestARingThatShrinksWhileAWriteCopies(t *testing.T) {
	defer func() { testHookCopying = func(*Stream) {} }()
	onLink(t, sim.Link{}, testConfig, testConfig, 1, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
		c, s := clients[0], servers[0]
		drain := fill(t, c, s)
		time.Sleep(time.Second)
		require.Equal(t, eagerRing, s.ringSize())
		drain()
		testHookCopying = func(*Stream) {
			testHookCopying = func(*Stream) {}
			time.Sleep(3 * s.link.shrinkAfter())
			require.Equal(t, firstRing, s.ringSize())
		}
		want := bytes.Repeat([]byte("all of it"), 10_000)
		written := make(chan error, 1)
		go func() { written <- writeAll(c, want) }()
		got := make([]byte, len(want))
		_, err := io.ReadFull(reader{s}, got)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.NoError(t, <-written)
	})
}

// What has filled the staging memory has arrived, but before the completions the queue pair is lost. Nothing
// is to be sent again then, so nothing will complete; and a Write that waits for the memory has it.
func TestStagingMemoryIsFreeOfWhatHadArrivedBeforeTheQueuePairWasLost(t *testing.T) {
	little := func(cfg *Setup) { cfg.SendBuffer, cfg.RecvBuffer, cfg.KeepAlive = 16<<10, 16<<10, -1 }
	resumedWith(t, sim.Link{}, little, func(t *testing.T, n *sim.Network, c, s *Stream) {
		ep := endpointOf(c.link)
		ep.HoldSends(true)
		soon := deadline.New()
		soon.Set(time.Now().Add(time.Minute))
		written := make(chan error, 1)
		go func() {
			_, err := c.Write(make([]byte, 64<<10), soon)
			written <- err
		}()
		go func() { _, _ = s.Discard(64<<10, unlimited()) }()
		synctest.Wait()
		require.Empty(t, written)
		ep.Fail(fabric.ErrQueuePair)
		require.NoError(t, <-written)
		require.EqualValues(t, 1, c.link.Info().Moves)
	})
}

// stagingSize is the size of the staging memory of a link.
func (l *Link) stagingSize() int {
	l.lock()
	defer l.unlock()
	return int(field(l.m, "send.staging.in.ring.buf").Len())
}

// A link begins with little staging memory. It has more as long as bulk wants that, where there is any.
func TestStagingMemoryGrowsForBulkAndShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		c, s, _ := connectLink(t, n, testConfig, testConfig)
		_, before := c.link.registeredBytes()
		for round := range uint64(3) {
			require.Equal(t, firstStaging, c.link.stagingSize())
			require.NoError(t, exchange(c, s, 8<<20, round))
			require.Equal(t, testConfig.SendBuffer, c.link.stagingSize())
			require.Equal(t, firstStaging, s.link.stagingSize(), "it sends no bulk")
			time.Sleep(c.link.shrinkAfter() / 2)
			require.Equal(t, testConfig.SendBuffer, c.link.stagingSize(), "it is not idle for long")
			time.Sleep(5 * c.link.shrinkAfter())
			_, after := c.link.registeredBytes()
			require.Equal(t, before, after)
		}
		require.NoError(t, exchange(c, s, 8<<20, 4))
		time.Sleep(2 * unused)
		require.GreaterOrEqual(t, c.link.freeUnneeded(), testConfig.SendBuffer, "memory is short")
		require.Equal(t, firstStaging, c.link.stagingSize())
		endAll(t, n, c, s)
	})
}

// Where memory is short bulk goes on with what there is.
func TestStagingMemoryDoesNotGrowWhereMemoryIsShort(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		cfg := limitedTo(fixed(testConfig) + firstRing)
		c, s, _ := connectLink(t, n, cfg, testConfig)
		require.NoError(t, exchange(c, s, 8<<20, 1))
		require.Equal(t, firstStaging, c.link.stagingSize())
		require.Equal(t, fixed(testConfig), inUse(cfg.Budget))
		endAll(t, n, c, s)
	})
}
