package link

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// slowToFree is an endpoint whose memory takes long to free.
type slowToFree struct {
	fabric.Endpoint
	freeing atomic.Int32
	freed   chan struct{} // closed when it may be
}

func (e *slowToFree) Register(n int, a fabric.Access) (fabric.Memory, error) {
	m, err := e.Endpoint.Register(n, a)
	return slowMemory{m, e}, err
}

type slowMemory struct {
	fabric.Memory
	e *slowToFree
}

func (m slowMemory) Free() bool {
	m.e.freeing.Add(1)
	<-m.e.freed
	return m.Memory.Free()
}

// TestNobodyWaitsForMemoryThatIsFreed has a device take its time for a buffer and for the rings that are of no use
// any more: the link carries on, and ends when the device has them.
func TestNobodyWaitsForMemoryThatIsFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		c, s, _ := connectLink(t, n, testConfig, testConfig)
		l := s.link
		e := &slowToFree{freed: make(chan struct{})}
		l.lock()
		e.Endpoint, l.ep = l.ep, e
		l.unlock()

		require.NoError(t, exchange(c, s, 4<<20, 1)) // rings grow
		b, err := s.NewBuffer(1 << 20)
		require.NoError(t, err)
		go b.Close()
		time.Sleep(5 * l.shrinkAfter())
		require.EqualValues(t, 2, e.freeing.Load())
		require.NoError(t, exchange(c, s, 1<<10, 2))
		require.Positive(t, l.Info().Memory)
		require.NoError(t, c.Close(0))
		require.NoError(t, s.Close(0))
		l.Abort()
		time.Sleep(time.Hour)
		l.lock()
		require.Equal(t, machine.Ended, l.m.Stage(), "the buffer is not closed yet")
		l.unlock()
		require.Positive(t, n.Open(), "the endpoint stays")
		close(e.freed)
		synctest.Wait()
		time.Sleep(time.Hour)
		require.Zero(t, n.Open())
	})
}
