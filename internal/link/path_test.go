package link

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// resuming is a configuration whose links outlive their queue pairs.
func resuming(n fabric.Fabric) Setup {
	cfg := testConfig
	cfg.KeepAlive = time.Second
	cfg.ResumeTimeout = 30 * time.Second
	cfg.Reconnect = &ReconnectListener{Fabric: n}
	return cfg
}

// resumed runs a test in virtual time with the first stream, at both ends, of a link that outlives
// its queue pairs. In the end nothing may be left.
func resumed(t *testing.T, network sim.Link, test func(t *testing.T, n *sim.Network, c, s *Stream)) {
	resumedWith(t, network, func(*Setup) {}, test)
}

func resumedWith(t *testing.T, network sim.Link, configure func(*Setup), test func(t *testing.T, n *sim.Network, c, s *Stream)) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(network)
		active, passive := resuming(n), resuming(n)
		configure(&active)
		configure(&passive)
		c, s, _ := connectLink(t, n, active, passive)
		test(t, n, c, s)
		endAll(t, n, c, s)
	})
}

// streamsOfBoth makes so many streams on a link whose sides are configured so.
func streamsOfBoth(t testing.TB, n fabric.Fabric, active, passive Setup, many int) (clients, servers []*Stream) {
	t.Helper()
	c, s, b := connectLink(t, n, active, passive)
	clients, servers = append(clients, c), append(servers, s)
	for len(clients) < many {
		c, err := c.Link().Open(context.Background())
		require.NoError(t, err)
		clients, servers = append(clients, c), append(servers, b.accept())
	}
	return clients, servers
}

// onLink runs a test in virtual time with so many streams of a link, at both ends. In the end
// nothing may be left.
func onLink(t *testing.T, network sim.Link, active, passive Setup, many int, test func(t *testing.T, n *sim.Network, clients, servers []*Stream)) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(network)
		clients, servers := streamsOfBoth(t, n, active, passive, many)
		test(t, n, clients, servers)
		endAll(t, n, append(clients, servers...)...)
	})
}

func endpointOf(l *Link) *sim.Endpoint {
	ep := l.endpoint()
	if h, ok := ep.(*hookedEndpoint); ok {
		ep = h.Endpoint
	}
	return ep.(*sim.Endpoint)
}

// times is how often a test does what takes long: a tenth as often with -short, and under the
// race detector, where it takes twenty times as long. make unit runs the package without that, too.
func times(n int) int {
	if testing.Short() || raceEnabled {
		return max(1, n/10)
	}
	return n
}

// confined is a fabric on which this process may not listen.
type confined struct{ *sim.Network }

func (confined) Listen(netip.AddrPort, int) (fabric.Listener, error) { return nil, syscall.EACCES }

func TestALinkThatNobodyCanComeBackToIsMadeAllTheSame(t *testing.T) {
	for name, confine := range map[string]func(n *sim.Network, active, passive *Setup){
		"active":  func(n *sim.Network, active, _ *Setup) { active.Reconnect = &ReconnectListener{Fabric: confined{n}} },
		"passive": func(n *sim.Network, _, passive *Setup) { passive.Reconnect = &ReconnectListener{Fabric: confined{n}} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(sim.Link{})
				active, passive := resuming(n), resuming(n)
				confine(n, &active, &passive)
				clients, servers := streamsOfBoth(t, n, active, passive, 1)
				require.NoError(t, exchange(clients[0], servers[0], 1<<20, 1))
				endpointOf(clients[0].link).Fail(fabric.ErrQueuePair)
				for _, s := range []*Stream{clients[0], servers[0]} {
					_, err := s.Read(make([]byte, 1), deadline.New())
					require.ErrorIs(t, err, syscall.ECONNRESET)
				}
				endAll(t, n, clients[0], servers[0])
			})
		})
	}
}

// TestALinkThatHasSoughtInVainSaysWhat ends links in each of the ways in which a search
// comes to nothing.
func TestALinkThatHasSoughtInVainSaysWhat(t *testing.T) {
	neverBack := func(_, _ *ReconnectListener) { time.Sleep(time.Minute) }
	gone := func(ours, peers *ReconnectListener) {
		for _, r := range []*ReconnectListener{ours, peers} {
			require.NoError(t, r.listener.Close())
		}
	}
	const noAnswer = `no other queue pair in 30s: 10.0.0.1 to 10.0.0.1:\d+: the peer did not answer; pairs of cards tried: 1`
	for name, tt := range map[string]struct {
		patience  time.Duration
		lose      func(*sim.Endpoint)
		meanwhile func(ours, peers *ReconnectListener) // while the cable is out
		want      string
	}{
		"the peer did not answer": {30 * time.Second, func(*sim.Endpoint) {}, neverBack,
			`^connection timed out \(transport retries exceeded, vendor code 0x0; ` + noAnswer + `\)$`},
		"gone": {30 * time.Second, func(*sim.Endpoint) {}, gone,
			`^connection timed out \(transport .*; no other queue pair in [\d.]+s: the peer has ended the link, or is gone: .*\)$`},
		"disconnected":         {30 * time.Second, (*sim.Endpoint).Kill, neverBack, `^connection reset by peer \(disconnected; ` + noAnswer + `\)$`},
		"disconnected, gone":   {30 * time.Second, (*sim.Endpoint).Kill, gone, `^connection reset by peer$`},
		"in its first attempt": {firstAttempt / 2, (*sim.Endpoint).Kill, neverBack, errNoAnswer.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			resumedWith(t, far, func(cfg *Setup) { cfg.ResumeTimeout = tt.patience }, func(t *testing.T, n *sim.Network, c, s *Stream) {
				n.Cut(true)
				tt.lose(endpointOf(c.link))
				tt.lose(endpointOf(s.link))
				time.Sleep(10 * time.Second)
				tt.meanwhile(c.link.path.listener, s.link.path.listener)
				n.Cut(false)
				for _, s := range []*Stream{c, s} {
					_, err := s.Read(make([]byte, 1), deadline.New())
					require.Regexp(t, tt.want, err)
					require.NotErrorIs(t, err, context.DeadlineExceeded, "nobody's deadline has passed")
				}
			})
		})
	}
}

// TestADialThatIsUnderWayWaitsForTheLinksPath has the peer answer only when the link has
// another queue pair. On one that has none no stream begins.
func TestADialThatIsUnderWayWaitsForTheLinksPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		c, s, b := connectLink(t, n, cfg, cfg)
		n.Cut(true)
		opened := make(chan *Stream)
		go func() {
			next, err := c.link.Open(context.Background())
			require.NoError(t, err)
			opened <- next
		}()
		time.Sleep(cfg.HandshakeTimeout - 3*time.Second)
		require.True(t, c.link.Info().Seeking)
		_, err := c.link.Open(context.Background())
		require.ErrorIs(t, err, machine.ErrGoingAway, "so it is dialed over another link")
		n.Cut(false)
		server := b.accept()
		client := <-opened
		require.NoError(t, exchange(server, client, 1<<20, 1))
		require.EqualValues(t, 1, c.link.Info().Moves, "OPEN was sent again with the key of this queue pair")
		endAll(t, n, c, s, client, server)
	})
}
