package link

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// A peer whose process is stopped takes no control messages after a few. Closing
// all streams on its link takes no longer than closing one.
func TestCloseOfAllStreamsOfAStoppedPeer(t *testing.T) {
	const linger = 10 * time.Second
	for name, fabric := range map[string]sim.Link{"instant": {}, "far": far} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(fabric)
				clients, servers := streamsOn(t, n, 100)
				time.Sleep(time.Second)
				servers[0].link.ep.(*sim.Endpoint).HoldReceives(true)
				start := time.Now()
				inVain := 0
				for _, c := range clients {
					if err := c.Close(linger); err != nil {
						require.ErrorIs(t, err, syscall.ETIMEDOUT)
						inVain++
					}
				}
				require.Less(t, time.Since(start), linger+time.Second)
				require.Equal(t, len(clients)-credit.RecordWindow, inVain)
				time.Sleep(time.Minute)
				require.False(t, clients[0].link.usable(), "the link is given up")
				servers[0].link.ep.(*sim.Endpoint).HoldReceives(false)
				for _, s := range servers {
					_ = s.Close(linger)
				}
				time.Sleep(2 * time.Minute)
				require.Zero(t, n.Open(), "endpoints left open")
			})
		})
	}
}

// A peer that has gone on is waited for anew.
func TestCloseWaitsAnewForAPeerThatGoesOn(t *testing.T) {
	const linger = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		clients, servers := streamsOn(t, n, 40)
		time.Sleep(time.Second)
		peer := servers[0].link.ep.(*sim.Endpoint)
		for _, some := range [][]*Stream{clients[:20], clients[20:]} {
			peer.HoldReceives(true)
			start := time.Now()
			for _, c := range some {
				_ = c.Close(linger)
			}
			require.Equal(t, linger, time.Since(start).Truncate(time.Second))
			peer.HoldReceives(false)
			time.Sleep(time.Second)
		}
		for _, s := range servers {
			_ = s.Close(linger)
		}
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints left open")
	})
}
