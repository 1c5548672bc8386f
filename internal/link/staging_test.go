package link

import (
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// closeAtOnce closes streams, whatever they hold.
func closeAtOnce(streams ...[]*Stream) {
	for _, s := range slices.Concat(streams...) {
		_ = s.Close(0)
	}
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

// The stream comes to its end whose Write has filled the staging memory and copies to it.
func TestStagingMemoryThatIsNotUsedAfterAllIsForThoseWhoWait(t *testing.T) {
	onLink(t, sim.Link{}, testConfig, testConfig, 2, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
		l, staging := clients[0].link, &clients[0].link.send.staging
		l.mu.Lock()
		number, _, _ := staging.take(staging.ring.Free())
		l.mu.Unlock()
		written := make(chan error, 1)
		go func() { written <- writeAll(clients[0], make([]byte, 4<<10)) }()
		require.NoError(t, servers[1].Close(0))
		synctest.Wait()
		require.Empty(t, written)
		l.mu.Lock()
		_, err := clients[1].staged(number, staging.ring.Size())
		l.mu.Unlock()
		require.Error(t, err)
		require.NoError(t, <-written)
		closeAtOnce(clients, servers)
	})
}
