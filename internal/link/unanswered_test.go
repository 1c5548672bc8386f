package link

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
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
		for _, s := range []*Stream{c, s, server} {
			require.NoError(t, s.Close(time.Second))
		}
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints left open")
	})
}

// A peer that is stopped takes no records after a few: it is not to blame for a RESET that has
// not been sent.
func TestAStoppedPeerIsNotToAnswerWhatWasNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := testConfig
		cfg.ResumeTimeout = 30 * time.Second
		clients, servers := streamsOfBoth(t, n, cfg, cfg, 2+credit.RecordWindow)
		for _, c := range clients[1:] {
			require.NoError(t, c.Close(time.Second))
			time.Sleep(10 * time.Millisecond)
		}
		peer := servers[0].link.ep.(*sim.Endpoint)
		peer.HoldReceives(true)
		time.Sleep(cfg.ResumeTimeout)
		peer.HoldReceives(false)
		time.Sleep(2 * closeTimeout)
		requireEcho(t, clients[0], servers[0])
		for _, s := range append(servers, clients[0]) {
			require.NoError(t, s.Close(time.Second))
		}
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints left open")
	})
}
