package ringnet

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/transport"
)

func TestForTCPDialsItsNetworkInsteadOfTCP(t *testing.T) {
	simulate(t, sim.New(sim.Link{}))
	l := listen(t, ListenConfig{}, "sim", "127.0.0.1:0")
	d := &Dialer{ForTCP: "sim"}
	for network, conn := range map[string]net.Conn{"tcp": &AutoConn{}, "tcp4": &AutoConn{}, "sim": &Conn{}} {
		c := dial(t, d, network, l.Addr().String())
		require.IsType(t, conn, c)
		require.Equal(t, "sim", carrierOf(c))
		s := accept(t, l)
		require.Equal(t, "sim", s.LocalAddr().Network(), "asked for by its name")
		if instead, ok := c.(*AutoConn); ok {
			require.Empty(t, instead.PassedOver())
			requireTCPAddresses(t, c, s, l.Addr())
		}
	}
	_, err := d.Dial("tcp6", l.Addr().String())
	require.ErrorContains(t, err, "no suitable address")
}

func TestForTCPLeavesOtherNetworksToPackageNet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	unix, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer unix.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer udp.Close()
	d := &Dialer{ForTCP: "auto"}
	for network, other := range map[string]struct {
		address string
		conn    net.Conn
	}{
		"unix": {path, &net.UnixConn{}},
		"udp4": {udp.LocalAddr().String(), &net.UDPConn{}},
	} {
		c := dial(t, d, network, other.address)
		require.IsType(t, other.conn, c)
	}
}

func TestErrorsOfWrongArgumentsSayWhatIsWrong(t *testing.T) {
	simulate(t, sim.New(sim.Link{}))
	const (
		known    = "Dial and Listen know auto, auto4, auto6, rdma, rdma4, rdma6, shm, sim, sim4, sim6"
		notPower = "Config.RecvBuffer is 5000: want a power of two"
	)
	odd := &Config{RecvBuffer: 5000}
	for _, mistake := range []struct {
		network, address string
		d                Dialer
		listen           bool // is as wrong
		want             string
	}{
		{"tcp", "10.0.0.1:80", Dialer{}, true, "unknown network tcp: " + known + "; Dialer.ForTCP names the one to dial for tcp"},
		{"unix", "/x", Dialer{}, true, "unknown network unix: " + known},
		{"tcp5", "10.0.0.1:80", Dialer{ForTCP: "auto"}, true, "unknown network tcp5: " + known},
		{"", "10.0.0.1:80", Dialer{ForTCP: "auto"}, true, "unknown network : " + known},
		{"tcp4", "10.0.0.1:80", Dialer{ForTCP: "shm"}, false, "unknown network shm4: " + known},
		{"tcp", "10.0.0.1:80", Dialer{ForTCP: "tcp"}, true, "unknown network tcp: " + known},
		{"tcp4", "10.0.0.1:80", Dialer{ForTCP: "auto6"}, false, `Dialer.ForTCP is "auto6", which does not go with tcp4: `},
		{"sim", "10.0.0.1", Dialer{}, true, "missing port in address"},
		{"sim", "10.0.0.1:nonsense", Dialer{}, true, "unknown port"},
		{"sim", "10.0.0.1:70000", Dialer{}, true, "invalid port"},
		{"sim4", "[::1]:80", Dialer{}, true, "no suitable address"},
		{"sim6", "10.0.0.1:80", Dialer{}, true, "no suitable address"},
		{"sim", "10.0.0.1:80", Dialer{Config: odd}, true, notPower},
		{"auto", "127.0.0.1:0", Dialer{Config: odd}, true, notPower},
		{"sim", "10.0.0.1:80", Dialer{LocalAddr: &net.UnixAddr{Name: "/x"}}, false, "local address is neither a ringnet.Addr nor a *net.TCPAddr"},
		// Of which AddrPort of package net makes another port.
		{"shm", "127.0.0.1:1", Dialer{LocalAddr: &net.TCPAddr{Port: 1<<16 + 1}}, false, "invalid port"},
	} {
		mistake.d.Trace = &Trace{}
		_, err := mistake.d.Dial(mistake.network, mistake.address)
		require.ErrorContains(t, err, mistake.want)
		require.IsType(t, &net.OpError{}, err)
		var unknown net.UnknownNetworkError
		require.Equal(t, strings.Contains(err.Error(), "unknown network"), errors.As(err, &unknown))
		if mistake.listen {
			_, err = (&ListenConfig{Config: mistake.d.Config}).Listen(t.Context(), mistake.network, mistake.address)
			require.ErrorContains(t, err, mistake.want)
			require.IsType(t, &net.OpError{}, err)
		}
	}
	require.NotContains(t, Totals(), "tcp5", "labels are from a small set")
	_, err := (&ListenConfig{Backlog: -1}).Listen(t.Context(), "sim", ":0")
	require.ErrorContains(t, err, "ListenConfig.Backlog is -1")
	_, err = (&ListenConfig{PendingMemory: -1}).Listen(t.Context(), "sim", ":0")
	require.ErrorContains(t, err, "ListenConfig.PendingMemory is -1")
}

// A fabric gets what it must know before it connects, such as the traffic class, when it is
// opened.
func TestConfigOfEachSideReachesItsFabric(t *testing.T) {
	n := sim.New(sim.Link{})
	var class int
	addNetwork(t, "sim", namedNetwork{&transport.Network{Name: "sim", Open: func(_ transport.Trust, c *link.Config) (fabric.Fabric, error) {
		class = c.TrafficClass
		return n, nil
	}}, "ip"})

	l := listen(t, ListenConfig{Config: &Config{TrafficClass: 104}}, "sim", "10.0.0.1:0")
	require.Equal(t, 104, class)
	dial(t, &Dialer{Config: &Config{TrafficClass: 106}}, "sim", l.Addr().String())
	require.Equal(t, 106, class)
}
