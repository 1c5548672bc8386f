package link

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// stopping is a configuration of links whose peers are stopped for a while.
var stopping = func() Setup {
	cfg := testConfig
	cfg.ResumeTimeout = 30 * time.Second
	return cfg
}()

// A peer that is stopped answers when it goes on, and none of its connections has ended.
func TestAStoppedPeerAnswersResetsLater(t *testing.T) {
	onLink(t, far, stopping, stopping, 2, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
		peer := endpointOf(servers[0].link)
		peer.HoldReceives(true)
		require.NoError(t, clients[1].Close(0))
		time.Sleep(stopping.ResumeTimeout)
		peer.HoldReceives(false)
		time.Sleep(2 * closeTimeout)
		requireEcho(t, clients[0], servers[0])
	})
}

// A peer that is stopped takes no records after a few: it is not to blame for a RESET that has
// not been sent.
func TestAStoppedPeerIsNotToAnswerWhatWasNotSent(t *testing.T) {
	onLink(t, far, stopping, stopping, 2+credit.RecordWindow, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
		for _, c := range clients[1:] {
			require.NoError(t, c.Close(time.Second))
			time.Sleep(10 * time.Millisecond)
		}
		peer := endpointOf(servers[0].link)
		peer.HoldReceives(true)
		time.Sleep(stopping.ResumeTimeout)
		peer.HoldReceives(false)
		time.Sleep(2 * closeTimeout)
		requireEcho(t, clients[0], servers[0])
	})
}

// Closing all streams of a peer that is stopped takes no longer than closing one, and one that has
// gone on is waited for anew.
func TestCloseWaitsAnewForAPeerThatGoesOn(t *testing.T) {
	onLink(t, far, stopping, stopping, 40, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
		peer := endpointOf(servers[0].link)
		for _, some := range [][]*Stream{clients[:20], clients[20:]} {
			peer.HoldReceives(true)
			start := time.Now()
			for _, c := range some {
				_ = c.Close(10 * time.Second)
			}
			require.Equal(t, 10*time.Second, time.Since(start).Truncate(time.Second))
			peer.HoldReceives(false)
			time.Sleep(time.Second)
		}
	})
}

// A link that is to wait for its path for ever does so though one of its streams is closed.
func TestALinkWaitsForEverThoughAStreamIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		cfg.ResumeTimeout = math.MaxInt64
		clients, servers := streamsOfBoth(t, n, cfg, cfg, 2)
		n.Cut(true)
		require.Error(t, clients[1].Close(5*time.Second))
		time.Sleep(20 * time.Second)
		n.Cut(false)
		requireEcho(t, clients[0], servers[0])
		endAll(t, n, append(clients, servers...)...)
	})
}

// A peer that has nothing to answer is not silent: the first stream of a link was answered with the link.
func TestAPeerThatHasNothingToAnswerIsNotSilent(t *testing.T) {
	echoed(t, testConfig, testConfig, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		p.answer = 250 * time.Millisecond
		streams := p.open(t, 3) // with a second between them
		require.Len(t, onLinks(streams), 1)
		require.Zero(t, streams[0].link.unheard.lasted())
		closeAll(t, streams)
	})
}
