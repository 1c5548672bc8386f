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

// twoCards are configurations of both sides whose links go on after a loss, and the fabric of
// the side that dials.
func twoCards(n *sim.Network) (active, passive Setup, dialer fabric.Fabric) {
	client := n.Host(fabric.Card{client1}, fabric.Card{client2})
	server := n.Host(fabric.Card{server1}, fabric.Card{server2})
	active, passive = resuming(client), resuming(server)
	return active, passive, client
}

// onTwoCards runs a test in virtual time with so many streams of a link between two hosts
// with two cards each. In the end nothing may be left.
func onTwoCards(t *testing.T, many int, test func(t *testing.T, n *sim.Network, clients, servers []*Stream)) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		active, passive, dialer := twoCards(n)
		clients, servers := streamsOfBoth(t, dialer, active, passive, many)
		test(t, n, clients, servers)
		endAll(t, n, append(clients, servers...)...)
	})
}

// addrs are the addresses of a path without the ports.
func (p Path) addrs() [2]netip.Addr {
	return [2]netip.Addr{p.Local.AddrPort().Addr(), p.Remote.AddrPort().Addr()}
}

// requirePath checks which cards the link of both ends is on.
func requirePath(t *testing.T, c, s *Stream, path [2]netip.Addr) {
	t.Helper()
	for _, l := range []*Link{c.link, s.link} {
		require.Equal(t, path, l.Info().Path.addrs())
		path[0], path[1] = path[1], path[0]
	}
}

var cable2 = [2]netip.Addr{client2, server2}

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

// TestALinkGoesOnOverAnotherCardAtOnce loses queue pairs, in each of the ways in which that is
// noticed at once, and soon after that the card to which the link has gone. A device takes its
// time to destroy what was lost.
func TestALinkGoesOnOverAnotherCardAtOnce(t *testing.T) {
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
			onTwoCards(t, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
				ours, peers := endpointOf(c[0].link), endpointOf(s[0].link)
				n.SetFaults(sim.Faults{Close: func(e *sim.Endpoint) {
					if e == ours || e == peers {
						time.Sleep(3 * time.Second)
					}
				}})
				lose(n, ours, peers)
				require.Less(t, requireEcho(t, c[0], s[0]), 600*time.Millisecond)
				require.EqualValues(t, 1, c[0].link.Info().Moves)
				require.False(t, s[0].link.Info().Seeking)

				n.CutCard(client1, false)
				n.CutCard(server1, false)
				n.CutCard(c[0].link.Info().Path.Local.AddrPort().Addr(), true)
				time.Sleep(attemptPause)
				endpointOf(c[0].link).Fail(fabric.ErrDeviceRemoved)
				require.Less(t, requireEcho(t, c[0], s[0]), 600*time.Millisecond)
			})
		})
	}
}

// TestALinkGoesOnWithinFiveSecondsThoughNothingReportsThatACableIsOut has one be out beyond a
// switch, and the side that dialed or the other send something then.
func TestALinkGoesOnWithinFiveSecondsThoughNothingReportsThatACableIsOut(t *testing.T) {
	for name, sender := range map[string]func(c, s *Stream) (from, to *Stream){
		"the dialer sends":   func(c, s *Stream) (from, to *Stream) { return c, s },
		"the listener sends": func(c, s *Stream) (from, to *Stream) { return s, c },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(far)
				active, passive, dialer := twoCards(n)
				for _, cfg := range []*Setup{&active, &passive} {
					cfg.KeepAlive, cfg.AckTimeout, cfg.Retries = 10*time.Second, 1<<17*4096*time.Nanosecond, 6 // as in package rconn
				}
				c, s, _ := connectLink(t, dialer, active, passive)
				from, to := sender(c, s)
				n.CutCard(server1, true)
				require.Less(t, requireEcho(t, from, to), 5*time.Second)
				requirePath(t, c, s, cable2)
				endAll(t, n, c, s)
			})
		})
	}
}

// TestALinkIsMovedByItsPeerAlone makes requests as whoever has seen the number of the
// link on the wire could, and repeats those of its peer.
func TestALinkIsMovedByItsPeerAlone(t *testing.T) {
	onTwoCards(t, 1, func(t *testing.T, n *sim.Network, c, s []*Stream) {
		l := c[0].link
		requireRefused := func(l *Link, m wire.Resumption, change func(*wire.Seal), want wire.Reject) {
			t.Helper()
			ep, err := l.dial(context.Background(), route{local: l.path.own.Others[0], remote: l.path.peers[1]})
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
		of := func(kind wire.ResumptionKind, attempt uint32) wire.Resumption {
			return wire.Resumption{Kind: kind, Link: l.path.own.Link, Attempt: attempt, Taken: 1000}
		}
		rightly := func(*wire.Seal) {}
		requireRefused(l, of(wire.ResumeRequest, 1000), func(s *wire.Seal) { s.Secret = [wire.SecretSize]byte{} }, noSuchLink)
		requireRefused(l, of(wire.ResumeRequest, 1000), func(s *wire.Seal) { s.From = client1 }, noSuchLink)
		requireRefused(l, of(wire.ResumeRequest, 1000), func(s *wire.Seal) { s.To = server1 }, noSuchLink)
		endpointOf(l).Fail(fabric.ErrQueuePair)
		requireEcho(t, c[0], s[0])
		requirePath(t, c[0], s[0], cable2)

		requireRefused(l, of(wire.ResumeRequest, 1), rightly, linkIsThere)
		requireRefused(l, of(wire.ResumeAnswer, 1000), rightly, noSuchLink)
		passives := of(wire.ResumeRequest, 1000)
		passives.Passive, passives.Taken = true, 0
		requireRefused(l, passives, rightly, noSuchLink)
		require.EqualValues(t, 1, l.path.requests.answered)
		requireRefused(s[0].link, passives, rightly, linkIsThere) // made before the two agreed on the active side's
		requireEcho(t, c[0], s[0])
		requirePath(t, c[0], s[0], cable2)
		require.EqualValues(t, 1, s[0].link.Info().Moves)
	})
}

// TestTheSideThatNoticesFirstTellsTheOther has the side that was dialed lose the queue
// pair where the other would not notice: nothing is sent, and nobody is told.
func TestTheSideThatNoticesFirstTellsTheOther(t *testing.T) {
	resumedWith(t, far, func(cfg *Setup) { cfg.KeepAlive = -1 }, func(t *testing.T, n *sim.Network, c, s *Stream) {
		ep := endpointOf(s.link)
		ep.Cut(true)
		ep.Fail(fabric.ErrQueuePair)
		require.Less(t, requireEcho(t, c, s), time.Second)
	})
}

// breakages are ways to lose queue pairs of links between two cards each.
var breakages = []struct {
	name string
	do   func(n *sim.Network, r *rand.Rand, ours, peers *sim.Endpoint)
}{
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
	{"all cables", func(n *sim.Network, r *rand.Rand, _, _ *sim.Endpoint) {
		n.Cut(true)
		time.Sleep(time.Duration(r.IntN(20_000)) * time.Millisecond)
		n.Cut(false)
		time.Sleep(2 * attemptTime) // for the peers to find each other
	}},
}

// TestStreamsOutliveAnyCard moves bytes both ways on streams whose link loses its queue pair,
// or a card, again and again.
func TestStreamsOutliveAnyCard(t *testing.T) {
	const breaks = 10
	for seed := range uint64(times(4)) {
		for _, b := range breakages {
			t.Run(fmt.Sprintf("%s/%d", b.name, seed), func(t *testing.T) {
				onTwoCards(t, 3, func(t *testing.T, n *sim.Network, c, s []*Stream) {
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
		case <-time.After(time.Duration(1+r.IntN(50)) * time.Millisecond):
		}
	}
}
