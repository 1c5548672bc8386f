package link

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

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
