package link

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
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

// onTwoCards runs a test in virtual time with a stream of a link between two hosts with two cards
// each. In the end nothing may be left.
func onTwoCards(t *testing.T, test func(t *testing.T, n *sim.Network, c, s *Stream)) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		active, passive, dialer := twoCards(n)
		c, s, _ := connectLink(t, dialer, active, passive)
		test(t, n, c, s)
		endAll(t, n, c, s)
	})
}

// addrs are the addresses of a path without the ports.
func (p Path) addrs() [2]netip.Addr {
	return [2]netip.Addr{p.Local.Addr(), p.Remote.Addr()}
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
		"our way to the peer": func(n *sim.Network, ours, _ *sim.Endpoint) {
			n.CutCard(client1, true)
			ours.Fail(fabric.ErrPathLost)
		},
		"the peer's way": func(n *sim.Network, _, peers *sim.Endpoint) {
			n.CutCard(server1, true)
			peers.Fail(fabric.ErrPathLost)
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
			onTwoCards(t, func(t *testing.T, n *sim.Network, c, s *Stream) {
				ours, peers := endpointOf(c.link), endpointOf(s.link)
				n.SetFaults(sim.Faults{Close: func(e *sim.Endpoint) {
					if e == ours || e == peers {
						time.Sleep(3 * time.Second)
					}
				}})
				lose(n, ours, peers)
				require.Less(t, requireEcho(t, c, s), 600*time.Millisecond)
				require.EqualValues(t, 1, c.link.Info().Moves)
				require.False(t, s.link.Info().Seeking)

				n.CutCard(client1, false)
				n.CutCard(server1, false)
				n.CutCard(c.link.Info().Path.Local.Addr(), true)
				time.Sleep(attemptPause)
				endpointOf(c.link).Fail(fabric.ErrDeviceRemoved)
				require.Less(t, requireEcho(t, c, s), 600*time.Millisecond)
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

// A request that waits may be accepted yet. One that this side makes meanwhile must not pass for
// one that it has made afterwards: then the peer would give up the queue pair of its own.
func TestARequestThatWaitsIsNotTaken(t *testing.T) {
	resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
		l := s.link
		ep, err := l.dial(t.Context(), route{remote: l.path.peers[0]})
		require.NoError(t, err)
		defer ep.Close()
		l.lock()
		l.path.arrival, l.path.arrived = &arrival{ep, wire.Resumption{Attempt: 7}}, 7
		l.unlock()
		require.EqualValues(t, 6, l.nextRequest(false).Taken)
		require.NotNil(t, l.nextArrival())
		require.EqualValues(t, 7, l.nextRequest(false).Taken)
	})
}

// TestALinkIsMovedByItsPeerAlone makes requests as whoever has seen the number of the
// link on the wire could, and repeats those of its peer.
func TestALinkIsMovedByItsPeerAlone(t *testing.T) {
	onTwoCards(t, func(t *testing.T, n *sim.Network, c, s *Stream) {
		l := c.link
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
		requireEcho(t, c, s)
		requirePath(t, c, s, cable2)

		requireRefused(l, of(wire.ResumeRequest, 1), rightly, linkIsThere)
		requireRefused(l, of(wire.ResumeAnswer, 1000), rightly, noSuchLink)
		passives := of(wire.ResumeRequest, 1000)
		passives.Passive, passives.Taken = true, 0
		requireRefused(l, passives, rightly, noSuchLink)
		require.EqualValues(t, 1, l.path.requests.answered)
		requireRefused(s.link, passives, rightly, linkIsThere) // made before the two agreed on the active side's
		requireEcho(t, c, s)
		requirePath(t, c, s, cable2)
		require.EqualValues(t, 1, s.link.Info().Moves)
	})
}
