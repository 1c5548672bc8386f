package link

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// A stream that its owner has closed waits so long for the peer's application
// and no longer, also if it was the link's last and another has begun since.
func TestAPeerThatDoesNotCloseKeepsNoStream(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, b := connectLink(t, n, testConfig, testConfig)
		require.NoError(t, c.Close(time.Second))
		client, err := c.Link().Open(context.Background())
		require.NoError(t, err)
		server := b.accept()
		time.Sleep(2 * patience)
		_, live := c.Link().table()
		require.Equal(t, 1, live)
		require.ErrorIs(t, writeAll(s, []byte("x")), syscall.EPIPE)
		require.NoError(t, s.Close(time.Second))
		require.NoError(t, client.Close(time.Second))
		require.NoError(t, server.Close(time.Second))
	})
}

// Either side ends a link that has carried no stream for as long as it allows.
func TestBothSidesEndAnIdleLink(t *testing.T) {
	for _, side := range []string{"dialer", "listener"} {
		t.Run(side, func(t *testing.T) {
			virtually(t, func(t *testing.T, n *sim.Network) {
				active, passive := testConfig, testConfig
				active.Idle, passive.Idle = time.Minute, time.Hour
				if side == "listener" {
					active.Idle, passive.Idle = passive.Idle, active.Idle
				}
				c, s, _ := connectLink(t, n, active, passive)
				require.NoError(t, c.Close(time.Second))
				require.NoError(t, s.Close(time.Second))
				time.Sleep(time.Minute - time.Second)
				require.Equal(t, 2, n.Open())
				time.Sleep(2 * time.Second)
				require.Zero(t, n.Open())
			})
		})
	}
}
