package link

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// resuming is a configuration whose links outlive their queue pairs.
func resuming(n fabric.Fabric) Setup {
	cfg := testConfig
	cfg.KeepAlive = time.Second
	cfg.ResumeTimeout = 30 * time.Second
	cfg.Reconnect = &ReconnectListener{Fabric: n}
	return cfg
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

// breakage is a way to lose a queue pair while both processes live.
type breakage struct {
	name string
	do   func(n *sim.Network, r *rand.Rand, ours, peers *sim.Endpoint)
}

var breakages = []breakage{
	{"ours in error", func(_ *sim.Network, _ *rand.Rand, ours, _ *sim.Endpoint) { ours.Fail(fabric.ErrQueuePair) }},
	{"the peer's in error", func(_ *sim.Network, _ *rand.Rand, _, peers *sim.Endpoint) { peers.Fail(fabric.ErrQueuePair) }},
	{"disconnected", func(_ *sim.Network, _ *rand.Rand, _, peers *sim.Endpoint) { peers.Kill() }},
	{"cable out", func(n *sim.Network, r *rand.Rand, _, _ *sim.Endpoint) {
		n.Cut(true)
		time.Sleep(time.Duration(r.IntN(20_000)) * time.Millisecond)
		n.Cut(false)
		time.Sleep(2 * attemptTime) // for the peers to find each other
	}},
}

// TestStreamsOutliveTheirQueuePair moves bytes both ways on streams whose link loses
// its queue pair again and again.
func TestStreamsOutliveTheirQueuePair(t *testing.T) {
	for seed := range uint64(seeds(4)) {
		for _, b := range breakages {
			t.Run(fmt.Sprintf("%s/%d", b.name, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					link := far
					link.Seed = seed
					n := sim.New(link)
					cfg := resuming(n)
					r := rand.New(rand.NewPCG(seed, 1))
					clients, servers := streamsOfBoth(t, n, cfg, cfg, 5)
					var traffic sync.WaitGroup
					failed := make(chan error, 100)
					for i := range clients {
						for j, ends := range [][2]*Stream{{clients[i], servers[i]}, {servers[i], clients[i]}} {
							traffic.Go(func() {
								if err := exchange(ends[0], ends[1], 8<<20, seed+uint64(2*i+j)); err != nil {
									failed <- fmt.Errorf("stream %d, direction %d: %w", i, j, err)
								}
							})
						}
					}
					over := make(chan struct{})
					go func() {
						traffic.Wait()
						close(over)
					}()
					breaks := 0
					for going := true; going; {
						select {
						case <-over:
							going = false
						case <-time.After(time.Duration(1+r.IntN(20_000)) * time.Microsecond):
							c, s := endpointOf(clients[0].link), endpointOf(servers[0].link)
							b.do(n, r, c, s)
							breaks++
						}
					}
					close(failed)
					for err := range failed {
						t.Error(err)
					}
					t.Log(breaks, "breaks")
					for i := range clients {
						require.NoError(t, clients[i].Close(60*time.Second))
						require.NoError(t, servers[i].Close(60*time.Second))
					}
					time.Sleep(2 * time.Minute)
					require.Zero(t, n.Open(), "endpoints or listeners left open")
					require.Zero(t, n.RNR(), "receiver not ready")
					require.Zero(t, inUse(testConfig.Budget), "memory left in use")
				})
			})
		}
	}
}

// TestWhatWentInlineIsSentAgain has the callers' bytes be others by the time that they
// are sent again.
func TestWhatWentInlineIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		clients, servers := streamsOfBoth(t, n, cfg, cfg, 3)
		for round := range 3 {
			for _, c := range clients { // what was sent again may be under way: more waits behind that
				for !c.hasSent() {
					time.Sleep(time.Millisecond)
				}
			}
			n.Cut(true)
			want := make([]byte, 0, 300)
			for i, c := range clients {
				before := c.Stats().MessagesSent
				first, rest := []byte{byte(round), byte(i)}, make([]byte, 50)
				v := net.Buffers{first, rest}
				want = append(append(want[:0], first...), rest...)
				_, err := c.WriteBuffers(&v, unlimited())
				require.NoError(t, err)
				require.Equal(t, before+1, c.Stats().MessagesSent, "it is sent at once")
				first[0], rest[0] = 0xff, 0xff
			}
			time.Sleep(10 * time.Second)
			n.Cut(false)
			for i, s := range servers {
				want[0], want[1] = byte(round), byte(i)
				got := make([]byte, len(want))
				_, err := io.ReadFull(reader{s}, got)
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
			require.EqualValues(t, round+1, clients[0].link.Info().Moves)
		}
		for i := range clients {
			require.NoError(t, clients[i].Close(time.Minute))
			require.NoError(t, servers[i].Close(time.Minute))
		}
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints or listeners left open")
	})
}

// hasSent reports whether nothing waits to be sent again.
func (s *Stream) hasSent() bool {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.link.maySendNew()
}

func endpointOf(l *Link) *sim.Endpoint {
	ep := l.endpoint()
	return ep.(*sim.Endpoint)
}

// seeds is how many seeds a test with random faults goes through.
func seeds(n int) int {
	if testing.Short() || raceEnabled {
		return 1
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
					require.NoError(t, s.Close(time.Second))
				}
				time.Sleep(2 * time.Minute)
				require.Zero(t, n.Open(), "endpoints or listeners left open")
				require.Zero(t, inUse(testConfig.Budget), "memory left in use")
			})
		})
	}
}

// A link that has gone on over another queue pair finds out, as before, that its peer is
// gone.
func TestKeepAliveGoesOnOverAnotherQueuePair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		clients, servers := streamsOfBoth(t, n, cfg, cfg, 1)
		n.Cut(true)
		time.Sleep(10 * cfg.KeepAlive)
		n.Cut(false)
		time.Sleep(2 * attemptTime)
		require.EqualValues(t, 1, clients[0].link.Stats().Moves)
		n.Cut(true)
		limit := deadline.New()
		limit.Set(time.Now().Add(2 * cfg.ResumeTimeout))
		_, err := clients[0].Read(make([]byte, 1), limit)
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		for _, s := range append(clients, servers...) {
			_ = s.Close(0)
		}
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints or listeners left open")
	})
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
		lose      func(*sim.Endpoint)
		meanwhile func(ours, peers *ReconnectListener) // while the cable is out
		want      string
	}{
		"the peer did not answer": {func(*sim.Endpoint) {}, neverBack,
			`^connection timed out \(transport retries exceeded, vendor code 0x0; ` + noAnswer + `\)$`},
		"gone": {func(*sim.Endpoint) {}, gone,
			`^connection timed out \(transport .*; no other queue pair in [\d.]+s: the peer has ended the link, or is gone: .*\)$`},
		"disconnected":       {(*sim.Endpoint).Kill, neverBack, `^connection reset by peer \(disconnected; ` + noAnswer + `\)$`},
		"disconnected, gone": {(*sim.Endpoint).Kill, gone, `^connection reset by peer$`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(far)
				active, passive := resuming(n), resuming(n)
				clients, servers := streamsOfBoth(t, n, active, passive, 1)
				ends := []*Stream{clients[0], servers[0]}
				n.Cut(true)
				for _, s := range ends {
					tt.lose(endpointOf(s.link))
				}
				time.Sleep(10 * time.Second)
				tt.meanwhile(active.Reconnect, passive.Reconnect)
				n.Cut(false)
				for _, s := range ends {
					_, err := s.Read(make([]byte, 1), deadline.New())
					require.Regexp(t, tt.want, err)
					require.NotErrorIs(t, err, context.DeadlineExceeded, "nobody's deadline has passed")
					_ = s.Close(0)
				}
				time.Sleep(2 * time.Minute)
				require.Zero(t, n.Open(), "endpoints or listeners left open")
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
		require.ErrorIs(t, err, errLeaving, "so it is dialed over another link")
		n.Cut(false)
		server := b.accept()
		client := <-opened
		require.NoError(t, exchange(client, server, 1<<20, 1))
		for _, end := range []*Stream{c, s, client, server} {
			require.NoError(t, end.Close(time.Minute))
		}
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints or listeners left open")
	})
}
