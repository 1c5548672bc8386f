package ringnet

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

func TestForTCPDialsItsNetworkInsteadOfTCP(t *testing.T) {
	simulate(t, sim.New(sim.Link{}))
	l := listen(t, ListenConfig{}, "sim", "127.0.0.1:0")
	d := &Dialer{ForTCP: "sim"}
	for network, conn := range map[string]net.Conn{"tcp": &AutoConn{}, "tcp4": &AutoConn{}, "sim": &Conn{}} {
		c := dial(t, d, network, l.Addr().String())
		require.IsType(t, conn, c)
		require.Equal(t, "sim", carrierOf(c))
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

func TestForTCPWithUnknownNetworksListsTheKnown(t *testing.T) {
	for _, unknown := range []struct{ forTCP, network, name string }{
		{"", "tcp", "tcp"},
		{"", "unix", "unix"},
		{"auto", "tcp5", "tcp5"},
		{"auto", "", ""},
		{"shm", "tcp4", "shm4"},
		{"tcp", "tcp", "tcp"},
	} {
		_, err := (&Dialer{ForTCP: unknown.forTCP}).Dial(unknown.network, "127.0.0.1:1")
		require.IsType(t, &net.OpError{}, err)
		var e net.UnknownNetworkError
		require.ErrorAs(t, err, &e)
		require.EqualValues(t, unknown.name, e)
		require.ErrorContains(t, err, "Listen knows auto, auto4, auto6, rdma, rdma4, rdma6, shm; ")
	}
	require.NotContains(t, Totals(), "tcp5", "labels are from a small set")
}

func TestErrorsOfUnknownNetworksNameTheFunctionThatKnowsThem(t *testing.T) {
	_, err := Listen("shm-udp", "127.0.0.1:0")
	require.ErrorContains(t, err, "unknown network shm-udp: Listen knows auto, auto4, auto6, rdma, rdma4, rdma6, shm; "+
		"ListenPacket knows auto-udp, auto-udp4, auto-udp6, rdma-udp, rdma-udp4, rdma-udp6, shm-udp; Dial knows all of these")
	_, err = ListenPacket("shm", "127.0.0.1:0")
	require.ErrorContains(t, err, "unknown network shm: Listen knows auto, ")
	_, err = Dial("tcp", "127.0.0.1:1")
	require.ErrorContains(t, err, "Dialer.ForTCP names the one to dial for tcp")
	_, err = (&Dialer{ForTCP: "auto6"}).Dial("tcp4", "127.0.0.1:1")
	require.ErrorContains(t, err, `Dialer.ForTCP is "auto6", which does not go with tcp4: `)
}

// AddrPort of a net.TCPAddr cuts such a port to 16 bits, which are another port.
func TestDialFromAPortOfMoreThan16Bits(t *testing.T) {
	for _, network := range []string{"shm", "shm-udp"} {
		for _, local := range []net.Addr{&net.TCPAddr{Port: 1<<16 + 1}, &net.UDPAddr{Port: -1}} {
			_, err := (&Dialer{LocalAddr: local}).Dial(network, "127.0.0.1:1")
			require.ErrorContains(t, err, "invalid port")
		}
	}
}

// A fabric gets what it must know before it connects, such as the traffic class, when it is
// opened.
func TestConfigOfEachSideReachesItsFabric(t *testing.T) {
	n := sim.New(sim.Link{})
	var class int
	addNetwork(t, "sim", network{&carrier{name: "sim", open: func(_ trustUser, c *Config) (fabric.Fabric, error) {
		class = c.TrafficClass
		return n, nil
	}}, "ip"})

	l := listen(t, ListenConfig{Config: &Config{TrafficClass: 104}}, "sim", "10.0.0.1:0")
	require.Equal(t, 104, class)
	dial(t, &Dialer{Config: &Config{TrafficClass: 106}}, "sim", l.Addr().String())
	require.Equal(t, 106, class)
}
