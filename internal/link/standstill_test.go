package link

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// Devices may take seconds over much memory, or over saying that they are there. Nobody
// else waits for that.

// isHeld reports whether the lock of a link is held, and not just for a moment.
func isHeld(l *Link) bool {
	for range 100_000 {
		if l.mu.TryLock() {
			l.mu.Unlock()
			return false
		}
		runtime.Gosched()
	}
	return true
}

// TestNobodyWaitsForADeviceThatRegisters has a link lose its queue pair whose memory takes
// its device a second for each piece, and buffers of its closed meanwhile.
func TestNobodyWaitsForADeviceThatRegisters(t *testing.T) {
	resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
		buffers := make(chan *Buffer, 2)
		for range cap(buffers) {
			b, err := c.link.NewBuffer(4096)
			require.NoError(t, err)
			buffers <- b
		}
		var held, registered atomic.Int32
		n.SetFaults(sim.Faults{Register: func(*sim.Endpoint, int) error {
			registered.Add(1)
			for _, l := range []*Link{c.link, s.link} {
				if isHeld(l) {
					held.Add(1)
				}
			}
			time.Sleep(time.Second / 2)
			select {
			case b := <-buffers:
				go b.Close()
			default:
			}
			time.Sleep(time.Second / 2)
			return nil
		}})
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		requireEcho(t, c, s)
		n.SetFaults(sim.Faults{})
		require.Greater(t, registered.Load(), int32(4), "both sides' memory")
		require.Zero(t, held.Load(), "calls of the link's streams would have had to wait")
	})
}
