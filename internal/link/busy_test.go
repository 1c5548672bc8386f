package link

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// Something may hold the lock of a link for long. Whoever asks for all links has the others as they are, and this
// one as it was.
func TestNobodyWhoAsksWaitsForALinkThatIsBusy(t *testing.T) {
	n, before := sim.New(sim.Link{}), Totals()["busy"].BytesSent
	cfg := testConfig
	cfg.LinkIdle = 0
	c, s, _ := connectLink(t, n, cfg, cfg)
	c.link.cfg.Network, s.link.cfg.Network = "busy", "idle"
	require.NoError(t, exchange(c, s, 1000, 1))
	of := func(network string) (infos []Info) {
		for _, i := range List() {
			if i.Network == network {
				infos = append(infos, i)
			}
		}
		return infos
	}
	over := make(chan struct{})
	close(over)

	c.link.lock()
	require.Len(t, of("busy"), 1, "of which nothing is known but whose it is")
	require.Equal(t, c.link.local, of("busy")[0].Local)
	require.Equal(t, 1, of("busy")[0].Connections)
	c.link.unlock()
	hang.Unless(t, func() bool { return of("busy")[0].BytesSent == 1000 })

	c.link.lock()
	require.EqualValues(t, 1000, of("busy")[0].BytesSent)
	require.EqualValues(t, 1000, of("idle")[0].BytesReceived)
	require.Equal(t, before+1000, Totals()["busy"].BytesSent)
	for range 3 * maxAsked {
		_, known := c.State(over)
		require.False(t, known)
		require.LessOrEqual(t, int(c.link.asked.Load()), maxAsked)
	}
	state, known := s.State(over)
	require.True(t, known)
	require.Equal(t, "open", state.State)
	c.link.unlock()
	hang.Unless(t, func() bool { return c.link.asked.Load() == 0 })
	closeAll(t, []*Stream{c, s})
	hang.Unless(t, func() bool { return n.Open() == 0 && inUse(testConfig.Budget) == 0 })
}
