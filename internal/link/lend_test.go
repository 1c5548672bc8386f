package link

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// A caller that panics while it looks at what has arrived has taken nothing, and the stream is as
// it was: it can be closed for reading, and its peer goes on writing.
func TestAPanicWhileBytesAreLentLeavesTheStream(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, _ := connectLink(t, n, testConfig, testConfig)
		require.NoError(t, writeAll(c, []byte("unread")))
		require.NoError(t, s.AwaitRead(unlimited()))
		require.Panics(t, func() {
			_ = s.Lend(100, unlimited(), func([]byte, error) (int, bool) { panic("of the caller's") })
		})
		require.NoError(t, s.CloseRead())
		written := make(chan error)
		go func() { written <- writeAll(c, make([]byte, 3*testConfig.RecvBuffer)) }()
		require.NoError(t, <-written)
		endAll(t, n, c, s)
	})
}
