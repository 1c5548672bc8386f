package link

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// TestASideWithoutTheBytesEndsTheLink has the peer's device acknowledge what its host never
// sees.
func TestASideWithoutTheBytesEndsTheLink(t *testing.T) {
	for _, active := range []bool{true, false} {
		resumed(t, far, func(t *testing.T, n *sim.Network, from, to *Stream) {
			if !active {
				from, to = to, from
			}
			endpointOf(to.link).HoldReceives(true)
			require.NoError(t, writeAll(from, make([]byte, 1000)))
			time.Sleep(time.Second)
			began := time.Now()
			endpointOf(to.link).Fail(fabric.ErrDeviceRemoved)
			for _, s := range []*Stream{from, to} {
				_, err := s.Read(make([]byte, 1), unlimited())
				require.Error(t, err)
			}
			require.Less(t, time.Since(began), 10*time.Second)
		})
	}
}

// TestABufferIsMadeDuringABreak asks for one while the path is lost: the connection lives.
func TestABufferIsMadeDuringABreak(t *testing.T) {
	resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
		n.Cut(true)
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		time.Sleep(time.Second)
		time.AfterFunc(3*time.Second, func() { n.Cut(false) })
		b, err := c.link.NewBuffer(4096)
		require.NoError(t, err)
		b.Close()
	})
}

// TestALinkWithMuchMemoryGoesOnFarAway has more keys to tell than can be told in the time
// that an attempt to reach the peer may take.
func TestALinkWithMuchMemoryGoesOnFarAway(t *testing.T) {
	resumed(t, sim.Link{Latency: 20 * time.Millisecond}, func(t *testing.T, n *sim.Network, c, s *Stream) {
		addSlabs(t, s.link, 1000)
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		require.Less(t, requireEcho(t, c, s), 5*time.Second)
		require.EqualValues(t, 1, c.link.Info().Moves)
	})
}

// TestTheExchangeOfKeysMayBreakAtAnyTime loses the queue pair on which keys are told, at
// one end, soon after each of the SENDs in turn, where each side has more or less to tell.
func TestTheExchangeOfKeysMayBreakAtAnyTime(t *testing.T) {
	for _, slabs := range [][2]int{{0, 0}, {20, 0}, {0, 20}, {40, 20}} {
		for seed := range uint64(seeds(40)) {
			network := sim.Link{Latency: time.Millisecond, Jitter: 2 * time.Millisecond, Seed: seed}
			resumed(t, network, func(t *testing.T, n *sim.Network, c, s *Stream) {
				addSlabs(t, c.link, slabs[0])
				addSlabs(t, s.link, slabs[1])
				r := rand.New(rand.NewPCG(seed, 4))
				at, soon, ours := int32(1+r.IntN(8)), time.Duration(r.IntN(4000))*time.Microsecond, r.IntN(2) == 0
				endpointOf(c.link).Fail(fabric.ErrQueuePair)
				var sends atomic.Int32
				n.SetFaults(sim.Faults{Send: func(e *sim.Endpoint, wr *fabric.WorkRequest) fabric.Status {
					if wr.Op == fabric.Send && sends.Add(1) == at {
						time.AfterFunc(soon, func() {
							if !ours {
								e = n.Find(e.RemoteAddr(), e.LocalAddr())
							}
							if e != nil {
								e.Fail(fabric.ErrQueuePair)
							}
						})
					}
					return fabric.OK
				}})
				requireEcho(t, c, s)
				requireEcho(t, s, c)
			})
		}
	}
}
