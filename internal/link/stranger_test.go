package link

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// Hosts that are no end of a link, and come in its way.

// listeningAt is a host that listens at one address of its, whichever it is to.
type listeningAt struct {
	*sim.Host
	addr netip.Addr
}

func (h listeningAt) Listen(_ netip.AddrPort, backlog int) (fabric.Listener, error) {
	return h.Host.Listen(netip.AddrPortFrom(h.addr, 0), backlog)
}

// TestALinkGoesOnWhereAnotherHostHasAnAddressOfThePeer has an address of the peer's, one
// that many hosts have on a network of their own, lead to another host, which refuses. The first
// cable is out. (Requests that it sends on, to be between the two, are refused as those of
// TestALinkIsMovedByItsPeerAlone are.)
func TestALinkGoesOnWhereAnotherHostHasAnAddressOfThePeer(t *testing.T) {
	elsewhere := netip.MustParseAddr("10.0.1.3") // and tried before server2
	for name, listens := range map[string]bool{"that does not listen": false, "that listens": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(far)
				active, passive, dialer := twoCards(n)
				h := n.Host(fabric.Card{server1}, fabric.Card{elsewhere}, fabric.Card{server2})
				passive.Reconnect = &ReconnectListener{Fabric: listeningAt{h, server2}}
				c, s, _ := connectLink(t, dialer, active, passive)
				l, err := n.Listen(netip.AddrPortFrom(elsewhere, s.link.path.own.Port), 8)
				require.NoError(t, err)
				if listens {
					go (&ReconnectListener{Fabric: n}).serve(l)
				} else {
					require.NoError(t, l.Close())
				}
				n.CutCard(server1, true)
				endpointOf(c.link).Fail(fabric.ErrQueuePair)
				requireEcho(t, c, s)
				requirePath(t, c, s, cable2)
				_ = l.Close()
				endAll(t, n, c, s)
			})
		})
	}
}

// TestAListenerThatTellsTheNumberOfAnothersLink has a listener that has seen the number of
// a link tell it for its own.
func TestAListenerThatTellsTheNumberOfAnothersLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg, passive := resuming(n), resuming(n)
		clients, servers := streamsOfBoth(t, n, cfg, passive, 1)
		c, s := clients[0], servers[0]
		n.SetFaults(sim.Faults{Lose: func(e *sim.Endpoint, m sim.Message) bool {
			return m == sim.REQ && e.RemoteAddr().Port() == s.link.path.own.Port
		}})

		l, err := n.Listen(netip.MustParseAddrPort("10.0.0.3:0"), 8)
		require.NoError(t, err)
		raw := make(chan *rawPeer)
		go func() {
			ep, err := l.Accept()
			require.NoError(t, err)
			p := openRaw(t, ep)
			p.meet(ep.Private())
			told := wire.Reconnect{Port: 1, Link: c.link.path.own.Link}
			require.NoError(t, ep.Accept(context.Background(), told.AppendAnswer(p.helloWith(credit.AcceptRecord, wire.Resume))))
			raw <- p
		}()
		ep, err := n.Dial(context.Background(), netip.AddrPort{}, l.Addr())
		require.NoError(t, err)
		other, err := Dial(context.Background(), ep, cfg)
		require.NoError(t, err)
		p := <-raw

		requireFound := func() {
			t.Helper()
			endpointOf(c.link).Fail(fabric.ErrQueuePair)
			requireEcho(t, c, s)
		}
		requireFound()
		_ = other.Close(0)
		_ = p.ep.Close()
		time.Sleep(time.Minute)
		requireFound()
		require.EqualValues(t, 2, c.link.Info().Moves)

		require.NoError(t, l.Close())
		endAll(t, n, c, s)
	})
}
