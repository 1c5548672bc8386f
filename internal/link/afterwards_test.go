package link

import (
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
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
		b, err := c.NewBuffer(4096)
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

// TestAQueuePairThatIsGivenUpIsEmptiedFirst has more arrive than is polled at a time, which
// the peer has freed, before the device is gone or the drain is over.
func TestAQueuePairThatIsGivenUpIsEmptiedFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that no engine polls before it is given up
	for name, giveUp := range map[string]func(n *sim.Network, ep *sim.Endpoint, l *Link){
		"the device is gone": func(_ *sim.Network, ep *sim.Endpoint, _ *Link) {
			ep.HoldReceives(false)
			ep.Fail(fabric.ErrDeviceRemoved)
		},
		"the device is cut off": func(n *sim.Network, ep *sim.Endpoint, _ *Link) {
			n.SetFaults(sim.Faults{Disconnect: func(e *sim.Endpoint) error {
				if e == ep {
					return fabric.ErrDeviceRemoved
				}
				return nil
			}})
			ep.HoldReceives(false)
			ep.Fail(fabric.ErrDeviceRemoved)
		},
		"the drain is over": func(_ *sim.Network, ep *sim.Endpoint, l *Link) {
			ep.Fail(fabric.ErrQueuePair)
			time.Sleep(time.Second)
			ep.HoldReceives(false)
			time.Sleep(drainTime)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(sim.Link{Latency: time.Millisecond, Inline: -1})
				cfg := resuming(n)
				cfg.SendQueue = 256
				clients, servers := streamsOfBoth(t, n, cfg, cfg, 3*maxPolls*maxBatch)
				l := servers[0].link
				ep := endpointOf(l)
				ep.HoldReceives(true)
				for _, c := range clients {
					require.NoError(t, writeAll(c, make([]byte, 1000)))
				}
				time.Sleep(time.Second)
				giveUp(n, ep, l)
				for !l.usable() { // no call but the engine's polls
					time.Sleep(time.Second)
				}
				for _, s := range servers {
					_, err := io.ReadFull(reader{s}, make([]byte, 1000))
					require.NoError(t, err)
				}
				endAll(t, n, append(clients, servers...)...)
			})
		})
	}
}

// TestAPortThatGoesDownWhileALinkMovesToItIsNoticed has no keepalive notice it.
func TestAPortThatGoesDownWhileALinkMovesToItIsNoticed(t *testing.T) {
	silent := func(cfg *Setup) { cfg.KeepAlive = -1 }
	resumedWith(t, sim.Link{Latency: 100 * time.Millisecond}, silent, func(t *testing.T, n *sim.Network, c, s *Stream) {
		keys := make(chan *sim.Endpoint, 100) // that posts the first of them
		n.SetFaults(sim.Faults{PostSend: func(ep *sim.Endpoint, _ []fabric.WorkRequest) error {
			keys <- ep
			return nil
		}})
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		ep := <-keys
		n.SetFaults(sim.Faults{})
		ep.Fail(fabric.ErrPortDown)
		for !c.link.usable() || !s.link.usable() {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(portDownTimeout / 2) // until nothing is under way
		n.Cut(true)
		time.Sleep(c.link.cfg.ResumeTimeout / 2)
		require.True(t, c.link.Info().Seeking || s.link.Info().Seeking)
		n.Cut(false)
		requireEcho(t, c, s)
		require.EqualValues(t, 2, c.link.Info().Moves)
	})
}

// TestASideThatHasClosedHasPatienceAfterABreak has a side close before a break, whose
// patience with the other ends when the link has just gone on: it has heard nothing yet.
func TestASideThatHasClosedHasPatienceAfterABreak(t *testing.T) {
	resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
		require.NoError(t, c.Close(0))
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		for c.link.Info().Moves == 0 {
			time.Sleep(time.Millisecond)
		}
		require.NoError(t, writeAll(s, []byte("said in vain")))
		time.Sleep(closeTimeout + closeTimeout/2)
		require.True(t, c.link.usable())
	})
}
