package pconn_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/packettest"
	"github.com/ringnet/ringnet/pconn"
)

// Conns on a network whose faults are the test's.

// virtual runs f in virtual time on a network of the link, of which nothing may be open at
// the end.
func virtual(t *testing.T, l sim.Link, f func(t *testing.T, n *sim.Network)) {
	synctest.Test(t, func(t *testing.T) { f(t, newNetwork(t, l)) })
}

func newNetwork(t *testing.T, l sim.Link) *sim.Network {
	n := sim.New(l)
	t.Cleanup(func() { require.Zero(t, n.Open(), "endpoints or address handles left open") })
	return n
}

// addrPort is an address of the form "host:port", of which the host may be missing.
func addrPort(address string) (netip.AddrPort, error) {
	if port, ok := strings.CutPrefix(address, ":"); ok {
		a, err := netip.ParseAddrPort("0.0.0.0:" + port)
		return netip.AddrPortFrom(netip.Addr{}, a.Port()), err
	}
	return netip.ParseAddrPort(address)
}

func TestConnOverSim(t *testing.T) {
	suite := func(n *sim.Network, prompt bool) packettest.Network {
		return packettest.Network{
			Listen: func(address string) (net.PacketConn, error) {
				local, err := addrPort(address)
				if err != nil {
					return nil, err
				}
				c, err := pconn.Listen(n, pconn.Options{Network: "sim", Local: local})
				if err != nil {
					return nil, &net.OpError{Op: "listen", Net: "sim", Err: err}
				}
				return c, nil
			},
			Dial: func(address string) (net.Conn, error) {
				remote, err := addrPort(address)
				if err != nil {
					return nil, err
				}
				return pconn.Listen(n, pconn.Options{Network: "sim", Local: netip.AddrPortFrom(remote.Addr(), 0), Remote: remote})
			},
			Batch:  func(c net.PacketConn) packettest.Batcher { return packettest.Batches(c.(*pconn.Conn)) },
			Host:   "10.0.0.1",
			Most:   4088,
			Burst:  64,
			Prompt: prompt,
		}
	}
	t.Run("at once", func(t *testing.T) {
		packettest.Each(t, func(t *testing.T, test func(*testing.T, packettest.Network)) {
			virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) { test(t, suite(n, true)) })
		})
	})
	t.Run("far away", func(t *testing.T) {
		packettest.Each(t, func(t *testing.T, test func(*testing.T, packettest.Network)) {
			virtual(t, sim.Link{Latency: 10 * time.Millisecond}, func(t *testing.T, n *sim.Network) { test(t, suite(n, false)) })
		})
	})
	t.Run("in real time", func(t *testing.T) {
		packettest.Test(t, suite(newNetwork(t, sim.Link{Spin: 1000}), true))
	})
}
