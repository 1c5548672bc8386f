package link

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// Two hosts with two cards each, on two cables.
var (
	client1 = netip.MustParseAddr("10.0.0.2")
	client2 = netip.MustParseAddr("10.0.1.2")
	server1 = netip.MustParseAddr("10.0.0.1") // where connectLink listens
	server2 = netip.MustParseAddr("10.0.1.1")
)

// twoCards are configurations of both sides whose links have a standby, and the fabric of
// the side that dials.
func twoCards(n *sim.Network) (active, passive Config, dialer fabric.Fabric) {
	client := n.Host(fabric.Card{client1}, fabric.Card{client2})
	server := n.Host(fabric.Card{server1}, fabric.Card{server2})
	active, passive = resuming(client), resuming(server)
	active.Standby, passive.Standby = true, true
	return active, passive, client
}

// onTwoCards runs a test in virtual time with so many streams of a link between two hosts
// with two cards each. In the end nothing may be left.
func onTwoCards(t *testing.T, change func(active, passive *Config), many int, test func(t *testing.T, n *sim.Network, clients, servers []*Stream)) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		active, passive, dialer := twoCards(n)
		change(&active, &passive)
		clients, servers := streamsOfBoth(t, dialer, active, passive, many)
		test(t, n, clients, servers)
		for i := range clients {
			_ = clients[i].Close(60 * time.Second)
			_ = servers[i].Close(60 * time.Second)
		}
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints or listeners left open")
		require.Zero(t, n.RNR(), "receiver not ready")
		require.Zero(t, inUse(active.Budget), "memory left in use")
		require.Zero(t, inUse(passive.Budget), "memory left in use")
	})
}

func asIs(*Config, *Config) {}

// addrs are the addresses of a path without the ports.
func (p Path) addrs() [2]netip.Addr { return [2]netip.Addr{p.Local.Addr(), p.Remote.Addr()} }

// requireStandby checks which cards the link of both ends, and its standby, are on.
func requireStandby(t *testing.T, c, s *Stream, path, standby [2]netip.Addr) {
	t.Helper()
	for _, l := range []*Link{c.link, s.link} {
		i := l.Info()
		require.Equal(t, path, i.Path.addrs())
		require.Equal(t, standby, i.Standby.addrs())
		path[0], path[1], standby[0], standby[1] = path[1], path[0], standby[1], standby[0]
	}
}

var (
	cable1  = [2]netip.Addr{client1, server1}
	cable2  = [2]netip.Addr{client2, server2}
	nowhere [2]netip.Addr
)

// standbyOf is the endpoint of a link's standby.
func standbyOf(l *Link) *sim.Endpoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.path.standby.ep.(*sim.Endpoint)
}

// requireEcho sends a little there and back, and returns how long that takes.
func requireEcho(t *testing.T, c, s *Stream) time.Duration {
	t.Helper()
	began := time.Now()
	want := []byte("there and back")
	got := make([]byte, len(want))
	for _, ends := range [][2]*Stream{{c, s}, {s, c}} {
		require.NoError(t, writeAll(ends[0], want))
		n, err := ends[1].Read(got, unlimited()) // one message
		require.NoError(t, err)
		require.Equal(t, want, got[:n])
	}
	return time.Since(began)
}

func TestALinkBetweenTwoCardsEachHasAStandby(t *testing.T) {
	onTwoCards(t, asIs, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
		requireStandby(t, c[0], s[0], cable1, nowhere)
		before := c[0].link.Info().Memory
		time.Sleep(2 * standbyPause)
		requireStandby(t, c[0], s[0], cable1, cable2)
		require.Greater(t, c[0].link.Info().Memory, before, "its receives are in the account")
		time.Sleep(time.Minute)
		requireStandby(t, c[0], s[0], cable1, cable2)
		require.Len(t, n.Endpoints(), 4)
	})
}

// TestALinkMovesToItsStandby loses queue pairs, in each of the ways in which that is
// noticed at once. A device takes its time to destroy what was lost.
func TestALinkMovesToItsStandby(t *testing.T) {
	for name, lose := range map[string]func(n *sim.Network, ours, peers *sim.Endpoint){
		"ours in error":       func(_ *sim.Network, ours, _ *sim.Endpoint) { ours.Fail(fabric.ErrQueuePair) },
		"the peer's in error": func(_ *sim.Network, _, peers *sim.Endpoint) { peers.Fail(fabric.ErrQueuePair) },
		"disconnected":        func(_ *sim.Network, _, peers *sim.Endpoint) { peers.Kill() },
		"our port down": func(n *sim.Network, ours, _ *sim.Endpoint) {
			n.CutCard(client1, true)
			ours.Fail(fabric.ErrPortDown)
		},
		"the peer's port down": func(n *sim.Network, _, peers *sim.Endpoint) {
			n.CutCard(server1, true)
			peers.Fail(fabric.ErrPortDown)
		},
		"our device removed": func(n *sim.Network, ours, _ *sim.Endpoint) {
			n.CutCard(client1, true)
			ours.Fail(fabric.ErrDeviceRemoved)
		},
		"the peer's device removed": func(n *sim.Network, _, peers *sim.Endpoint) {
			n.CutCard(server1, true)
			peers.Fail(fabric.ErrDeviceRemoved)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onTwoCards(t, asIs, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
				time.Sleep(2 * standbyPause)
				n.SetFaults(sim.Faults{Close: func(*sim.Endpoint) { time.Sleep(3 * time.Second) }})
				lose(n, endpointOf(c[0].link), endpointOf(s[0].link))
				require.Less(t, requireEcho(t, c[0], s[0]), 50*time.Millisecond)
				requireStandby(t, c[0], s[0], cable2, nowhere)
				require.EqualValues(t, 1, c[0].link.Info().Moves)
				require.False(t, s[0].link.Info().Seeking)

				n.CutCard(client1, false)
				n.CutCard(server1, false)
				time.Sleep(2 * standbyPauseMost)
				requireStandby(t, c[0], s[0], cable2, cable1)
				endpointOf(c[0].link).Kill()
				require.Less(t, requireEcho(t, c[0], s[0]), 50*time.Millisecond)
				requireStandby(t, c[0], s[0], cable1, nowhere)
			})
		})
	}
}

// TestALinkMovesToACardWithoutAStandby has a link lose the card that it was made on, when
// its standby is not there yet.
func TestALinkMovesToACardWithoutAStandby(t *testing.T) {
	without := func(a, p *Config) { a.Standby, p.Standby = false, false }
	onTwoCards(t, without, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
		for _, died := range []netip.Addr{client1, server2} {
			n.CutCard(died, true)
			endpointOf(s[0].link).Fail(fabric.ErrQueuePair)
			requireEcho(t, c[0], s[0])
			require.NotEqual(t, died, c[0].link.Info().Path.Local.Addr())
			require.NotEqual(t, died, c[0].link.Info().Path.Remote.Addr())
			n.CutCard(died, false)
		}
		require.EqualValues(t, 2, s[0].link.Info().Moves)
	})
}

// TestAStandbyThatIsLostIsReplaced cuts the second cable: whoever holds a standby that
// would be of no use finds out.
func TestAStandbyThatIsLostIsReplaced(t *testing.T) {
	onTwoCards(t, asIs, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
		time.Sleep(2 * standbyPause)
		requireStandby(t, c[0], s[0], cable1, cable2)
		n.CutCard(server2, true)
		time.Sleep(10 * time.Second)
		requireStandby(t, c[0], s[0], cable1, nowhere)
		requireEcho(t, c[0], s[0])
		n.CutCard(server2, false)
		time.Sleep(2 * standbyPauseMost)
		requireStandby(t, c[0], s[0], cable1, cable2)
		require.Zero(t, c[0].link.Info().Moves)
	})
}

// TestAStandbyThatIsDeadIsNoObstacle cuts the second cable just before the first is lost.
func TestAStandbyThatIsDeadIsNoObstacle(t *testing.T) {
	onTwoCards(t, asIs, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
		time.Sleep(2 * standbyPause)
		n.CutCard(server2, true)
		endpointOf(c[0].link).Fail(fabric.ErrQueuePair)
		requireEcho(t, c[0], s[0])
		requireStandby(t, c[0], s[0], cable1, nowhere)
	})
}

func TestThereIsNoStandbyThatIsNotWanted(t *testing.T) {
	for name, change := range map[string]func(active, passive *Config){
		"by the side that dials":   func(active, _ *Config) { active.Standby = false },
		"by the side that accepts": func(_, passive *Config) { passive.Standby = false },
	} {
		t.Run(name, func(t *testing.T) {
			onTwoCards(t, change, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
				for range 100 {
					time.Sleep(time.Second)
					require.LessOrEqual(t, len(n.Endpoints()), 4)
					requireStandby(t, c[0], s[0], cable1, nowhere)
				}
			})
		})
	}
}

func TestAStandbyNeedsMemory(t *testing.T) {
	var memory *budget.Budget
	short := func(_, passive *Config) {
		memory = budget.New(func() budget.Limits { return budget.Limits{Registered: 8 << 20, Locked: budget.Unlimited} })
		passive.Budget = memory
	}
	onTwoCards(t, short, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
		other := budget.Account{Budget: memory}
		used, limits := memory.State()
		require.NoError(t, other.Reserve(limits.Registered-used.Registered))
		time.Sleep(2 * standbyPauseMost)
		requireStandby(t, c[0], s[0], cable1, nowhere)

		other.Release(other.Bytes())
		time.Sleep(2 * standbyPauseMost)
		requireStandby(t, c[0], s[0], cable1, cable2)

		used, _ = memory.State()
		require.Positive(t, reclaim([]*Link{s[0].link}), "a standby is something to do without")
		time.Sleep(standbyPause / 2)
		now, _ := memory.State()
		require.Less(t, now.Registered, used.Registered)
		requireStandby(t, c[0], s[0], cable1, nowhere)
	})
}

// TestTheSideThatHasNotNoticedIsToldThoughTheStandbyIsLostToo has the passive side lose its
// queue pair and its standby, where nothing tells the other of either.
func TestTheSideThatHasNotNoticedIsToldThoughTheStandbyIsLostToo(t *testing.T) {
	silent := func(active, passive *Config) { active.KeepAlive, passive.KeepAlive = -1, -1 }
	onTwoCards(t, silent, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
		time.Sleep(2 * standbyPause)
		requireStandby(t, c[0], s[0], cable1, cable2)
		l := s[0].link
		standby := standbyOf(l)
		standby.Cut(true)
		lost := endpointOf(l)
		lost.Cut(true)
		lost.Fail(fabric.ErrQueuePair)
		require.Less(t, requireEcho(t, s[0], c[0]), 20*time.Second)
		require.EqualValues(t, 1, c[0].link.Info().Moves)
	})
}

// TestALinkIsMovedByItsPeerAlone makes requests as whoever has seen the number of the
// link on the wire could, and repeats those of its peer.
func TestALinkIsMovedByItsPeerAlone(t *testing.T) {
	onTwoCards(t, asIs, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
		l := c[0].link
		requireRefused := func(m wire.Resumption, change func(*wire.Seal), want wire.Reject) {
			t.Helper()
			ep, err := l.dial(context.Background(), route{local: client2, remote: l.path.peers[1]})
			require.NoError(t, err)
			defer ep.Close()
			require.NoError(t, l.openAgain(ep))
			seal := l.path.sealTo(ep)
			change(&seal)
			_, err = ep.Connect(context.Background(), m.Append(nil, seal))
			var reject *fabric.RejectError
			require.ErrorAs(t, err, &reject)
			require.Equal(t, want, wire.DecodeReject(reject.Private))
		}
		of := func(kind wire.ResumptionKind, attempt uint64) wire.Resumption {
			return wire.Resumption{Kind: kind, Link: l.path.own.Link, Attempt: attempt}
		}
		rightly := func(*wire.Seal) {}
		for _, kind := range []wire.ResumptionKind{wire.ResumeRequest, wire.ResumeStandby} {
			requireRefused(of(kind, 1000), func(s *wire.Seal) { s.Secret = [wire.SecretSize]byte{} }, noSuchLink)
			requireRefused(of(kind, 1000), func(s *wire.Seal) { s.From = client1 }, noSuchLink)
			requireRefused(of(kind, 1000), func(s *wire.Seal) { s.To = server1 }, noSuchLink)
		}
		time.Sleep(2 * standbyPause)
		endpointOf(l).Kill()
		requireEcho(t, c[0], s[0])
		time.Sleep(2 * standbyPause)
		requireStandby(t, c[0], s[0], cable2, cable1)

		requireRefused(of(wire.ResumeStandby, 1), rightly, standbyUntimely)
		requireRefused(of(wire.ResumeStandby, 2), rightly, standbyUntimely)
		requireRefused(of(wire.ResumeRequest, 2), rightly, noSuchLink)
		requireRefused(of(wire.ResumeAnswer, 1000), rightly, noSuchLink)
		requireEcho(t, c[0], s[0])
		requireStandby(t, c[0], s[0], cable2, cable1)
		require.EqualValues(t, 1, s[0].link.Info().Moves)
	})
}

// TestAPeerHasOneStandbyAtATime offers many, as a peer that means harm could.
func TestAPeerHasOneStandbyAtATime(t *testing.T) {
	onlyTheirs := func(active, _ *Config) { active.Standby = false }
	onTwoCards(t, onlyTheirs, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
		l := c[0].link
		before := inUse(s[0].link.cfg.Budget)
		footprint := endpointOf(l).Footprint(l.cfg.options())
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				r := route{local: client2, remote: l.path.peers[1]}
				ep, err := l.dial(ctx, r)
				if err == nil {
					defer ep.Close()
					if err = l.openAgain(ep); err == nil {
						_, _ = l.request(ctx, r, ep, wire.ResumeStandby)
					}
				}
				if more := inUse(s[0].link.cfg.Budget) - before; err != nil || more > footprint.Receives {
					t.Errorf("%d bytes more are in use (%v)", more, err)
				}
				time.Sleep(time.Second)
			})
		}
		all.Wait()
		requireEcho(t, c[0], s[0])
	})
}

// TestTheSideThatNoticesFirstTellsTheOther has the side that was dialed lose the queue
// pair where the other would not notice: nothing is sent, and nobody is told.
func TestTheSideThatNoticesFirstTellsTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		cfg.KeepAlive = -1
		c, s, _ := connectLink(t, n, cfg, cfg)
		ep := endpointOf(s.link)
		ep.Cut(true)
		ep.Fail(fabric.ErrQueuePair)
		require.Less(t, requireEcho(t, c, s), time.Second)
		require.NoError(t, c.Close(time.Minute))
		require.NoError(t, s.Close(time.Minute))
		time.Sleep(2 * time.Minute)
	})
}

// TestARequestSaysThatTheStandbyIsNotSound has the side that dialed lose both queue pairs,
// and the other side lose neither or the first: its standby is as good as ever to it.
func TestARequestSaysThatTheStandbyIsNotSound(t *testing.T) {
	for name, both := range map[string]bool{"of both": true, "of the dialer": false} {
		t.Run(name, func(t *testing.T) {
			onTwoCards(t, asIs, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
				time.Sleep(2 * standbyPause)
				requireStandby(t, c[0], s[0], cable1, cable2)
				l := c[0].link
				standby := standbyOf(l)
				standby.Cut(true)
				standby.Fail(fabric.ErrQueuePair)
				if both {
					endpointOf(s[0].link).Fail(fabric.ErrQueuePair)
				}
				endpointOf(l).Fail(fabric.ErrQueuePair)
				require.Less(t, requireEcho(t, c[0], s[0]), attemptTime/2)
			})
		})
	}
}

// TestAStandbyOfBeforeABreakIsNone has the link move while a standby is being made.
func TestAStandbyOfBeforeABreakIsNone(t *testing.T) {
	onTwoCards(t, asIs, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
		n.SetFaults(sim.Faults{Open: func(e *sim.Endpoint) error {
			if e.LocalAddr().Addr() == server2 {
				time.Sleep(attemptTime / 2)
			}
			return nil
		}})
		time.Sleep(standbyPause + attemptTime/4)
		endpointOf(c[0].link).Fail(fabric.ErrQueuePair)
		requireEcho(t, c[0], s[0])
		require.EqualValues(t, 1, c[0].link.Info().Moves)
		n.SetFaults(sim.Faults{})
		time.Sleep(2 * standbyPauseMost)
		requireStandby(t, c[0], s[0], cable1, cable2)
		for _, l := range []*Link{c[0].link, s[0].link} {
			l.mu.Lock()
			require.Greater(t, l.path.standby.attempt, l.path.madeBy)
			l.mu.Unlock()
		}
	})
}

// TestAStandbyIsMadeWithAPeerThatAnswersLate has the handshake take longer than a first
// attempt may.
func TestAStandbyIsMadeWithAPeerThatAnswersLate(t *testing.T) {
	onTwoCards(t, asIs, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
		n.SetFaults(sim.Faults{Open: func(e *sim.Endpoint) error {
			if e.LocalAddr().Addr() == server2 {
				time.Sleep(attemptTime * 3 / 2)
			}
			return nil
		}})
		time.Sleep(2 * standbyPauseMost)
		requireStandby(t, c[0], s[0], cable1, cable2)
	})
}

// cards are ways to lose queue pairs of links that have a standby.
var cards = []breakage{
	{"the queue pair", func(_ *sim.Network, r *rand.Rand, ours, peers *sim.Endpoint) {
		[]*sim.Endpoint{ours, peers}[r.IntN(2)].Fail(fabric.ErrQueuePair)
	}},
	{"any queue pair", func(n *sim.Network, r *rand.Rand, _, _ *sim.Endpoint) {
		if all := n.Endpoints(); len(all) > 0 {
			all[r.IntN(len(all))].Kill()
		}
	}},
	{"all queue pairs", func(n *sim.Network, _ *rand.Rand, _, _ *sim.Endpoint) {
		for _, ep := range n.Endpoints() {
			ep.Fail(fabric.ErrQueuePair)
		}
	}},
	{"cables", func(n *sim.Network, r *rand.Rand, _, _ *sim.Endpoint) {
		cut := []netip.Addr{client1, client2, server1, server2}[r.IntN(4)]
		n.CutCard(cut, true)
		time.Sleep(time.Duration(r.IntN(10_000)) * time.Millisecond)
		n.CutCard(cut, false)
	}},
}

// TestStreamsOutliveAnyCard moves bytes both ways on streams whose link loses its queue
// pair, its standby, or both, again and again.
func TestStreamsOutliveAnyCard(t *testing.T) {
	const breaks = 10
	for seed := range uint64(seeds(4)) {
		for _, b := range cards {
			t.Run(fmt.Sprintf("%s/%d", b.name, seed), func(t *testing.T) {
				onTwoCards(t, asIs, 3, func(t *testing.T, n *sim.Network, c, s []*Stream) {
					over := make(chan struct{})
					var traffic sync.WaitGroup
					for i := range c {
						for j, ends := range [][2]*Stream{{c[i], s[i]}, {s[i], c[i]}} {
							traffic.Go(func() {
								if err := exchangeUntil(over, ends[0], ends[1], seed+uint64(2*i+j)); err != nil {
									t.Errorf("stream %d, direction %d: %v", i, j, err)
								}
							})
						}
					}
					r := rand.New(rand.NewPCG(seed, 2))
					for range breaks {
						time.Sleep(time.Duration(r.IntN(4000)) * time.Millisecond)
						b.do(n, r, endpointOf(c[0].link), endpointOf(s[0].link))
					}
					close(over)
					traffic.Wait()
					t.Log(c[0].link.Info().Moves, "moves")
					require.Positive(t, s[0].link.Info().Moves)
					for i := range c {
						require.NoError(t, c[i].Close(time.Minute))
						require.NoError(t, s[i].Close(time.Minute))
					}
				})
			})
		}
	}
}

// exchangeUntil moves bytes one way, some at once and then a pause, until over is closed.
func exchangeUntil(over <-chan struct{}, from, to *Stream, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 3))
	for {
		if err := exchange(from, to, 1+r.IntN(1<<r.IntN(20)), r.Uint64()); err != nil {
			return err
		}
		select {
		case <-over:
			return nil
		case <-time.After(time.Duration(r.IntN(50)) * time.Millisecond):
		}
	}
}
