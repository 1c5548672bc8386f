package link

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// The peer accepts a stream, writes to it and resets it before whoever opens it has
// had a turn.
func TestAStreamThatIsOverBeforeItIsOpenKeepsNoMemory(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, b := connectLink(t, n, testConfig, testConfig)
		l := c.link
		before := l.memory.rings.taken
		require.NoError(t, l.takePlace(t.Context()))
		opening, err := l.beginStream(t.Context())
		require.NoError(t, err)
		server := b.accept()
		time.Sleep(time.Second)
		require.NoError(t, writeAll(server, []byte("x")))
		require.NoError(t, server.Close(0))
		time.Sleep(time.Second)
		require.ErrorIs(t, opening.opened(opening.awaitAnswer(t.Context())), syscall.ECONNRESET)
		require.Equal(t, before, l.memory.rings.taken)
		endAll(t, n, c, s)
	})
}

// Until a proof has come back nobody knows whose link it is: all that the side that dialed
// says is said for a stream.
func TestALinkThatIsToBeProvedSaysNothingUnasked(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		cfg := testConfig
		cfg.Proof = &Proof{
			Port:    80,
			Connect: func() error { return nil },
			Verify:  func(context.Context, <-chan struct{}) error { return nil },
		}
		c, s, _ := connectLink(t, n, cfg, cfg)
		time.Sleep(cfg.KeepAlive / 2)
		c.link.mu.Lock()
		require.Zero(t, c.link.send.slots.Next(), "work requests")
		c.link.mu.Unlock()
		endAll(t, n, c, s)
	})
}
