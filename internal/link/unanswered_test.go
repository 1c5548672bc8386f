package link

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// A peer that is stopped answers when it goes on, and none of its connections has ended.
func TestAStoppedPeerAnswersResetsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := testConfig
		cfg.ResumeTimeout = 30 * time.Second
		c, s, b := connectLink(t, n, cfg, cfg)
		closed, err := c.link.Open(t.Context())
		require.NoError(t, err)
		server := b.accept()
		s.link.ep.(*sim.Endpoint).HoldReceives(true)
		require.NoError(t, closed.Close(0))
		time.Sleep(cfg.ResumeTimeout)
		s.link.ep.(*sim.Endpoint).HoldReceives(false)
		time.Sleep(2 * closeTimeout)
		requireEcho(t, c, s)
		endAll(t, n, c, s, server)
	})
}
