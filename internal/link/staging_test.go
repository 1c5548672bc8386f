package link

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// A Write fills the staging memory with what it copies, and meanwhile its stream
// comes to its end, with all that this has to send. Another stream's Write waits
// for the memory, and nothing that will complete is left on its way.
func TestStagingMemoryThatIsNotUsedAfterAllIsForThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, b := connectLink(t, sim.New(sim.Link{}), testConfig, testConfig)
		l := c.Link()
		copying, err := l.Open(context.Background())
		require.NoError(t, err)
		server := b.accept()

		l.mu.Lock()
		n := l.send.staging.ring.Free()
		number, _, _ := l.send.staging.take(n)
		l.mu.Unlock()
		written := make(chan error, 1)
		go func() { written <- writeAll(c, make([]byte, 4<<10)) }()
		require.NoError(t, server.Close(0))
		synctest.Wait()
		require.Empty(t, written)

		l.mu.Lock()
		accepted, err := copying.staged(number, n, false)
		l.mu.Unlock()
		require.Error(t, err)
		require.Zero(t, accepted)
		synctest.Wait()
		require.Len(t, written, 1, "the other Write still waits")
		require.NoError(t, <-written)

		require.NoError(t, copying.Close(time.Second))
		require.NoError(t, c.Close(0))
		require.NoError(t, s.Close(0))
		time.Sleep(time.Minute)
	})
}
