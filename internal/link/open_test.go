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
		l := c.Link()
		before := l.memory.rings.taken
		require.NoError(t, l.takePlace(context.Background()))
		opening, err := l.beginStream(context.Background())
		require.NoError(t, err)
		server := b.accept()
		time.Sleep(time.Second)
		require.NoError(t, writeAll(server, []byte("x")))
		require.NoError(t, server.Close(0))
		time.Sleep(time.Second)
		require.ErrorIs(t, opening.opened(opening.awaitAnswer(context.Background())), syscall.ECONNRESET)
		require.Equal(t, before, l.memory.rings.taken)
		require.NoError(t, c.Close(time.Second))
		require.NoError(t, s.Close(time.Second))
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
		require.NoError(t, c.Close(time.Second))
		require.NoError(t, s.Close(time.Second))
	})
}
