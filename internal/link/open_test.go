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
		before := l.rings.taken
		require.NoError(t, l.takePlace(context.Background()))
		opening, err := l.beginStream()
		require.NoError(t, err)
		server := b.accept()
		time.Sleep(time.Second)
		require.NoError(t, writeAll(server, []byte("x")))
		require.NoError(t, server.Close(0))
		time.Sleep(time.Second)
		require.ErrorIs(t, opening.opened(opening.awaitAnswer(context.Background())), syscall.ECONNRESET)
		require.Equal(t, before, l.rings.taken)
		require.NoError(t, c.Close(time.Second))
		require.NoError(t, s.Close(time.Second))
	})
}
