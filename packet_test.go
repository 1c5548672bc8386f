package ringnet_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/packettest"
	"github.com/ringnet/ringnet/internal/wire"
)

func TestPacketConn(t *testing.T) {
	t.Run("shm", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("shm is Linux's")
		}
		testPacketConn(t, "shm-udp", "127.0.0.1", 4088, groupsAt("shm-udp", nil))
	})
	t.Run("auto", func(t *testing.T) { testPacketConn(t, "auto-udp", "127.0.0.1", 65507, nil) })
	for name, env := range map[string]string{"rdma": "SOFTROCE_ADDR", "rdma6": "SOFTROCE_ADDR6"} {
		t.Run(name, func(t *testing.T) {
			if os.Getenv(env) == "" {
				t.Skip(env, "is not set; bin/softroce sets it where there is an RDMA device")
			}
			var groups *packettest.Groups
			if name == "rdma" { // rdma_cm joins no groups of IPv6
				groups = groupsAt("rdma-udp", interfaceOf(t, os.Getenv(env)))
			}
			testPacketConn(t, "rdma-udp", os.Getenv(env), 4088, groups)
		})
	}
}

// groupsAt returns the groups at an interface.
func groupsAt(network string, ifi *net.Interface) *packettest.Groups {
	return &packettest.Groups{
		Listen: func(group string) (net.PacketConn, error) { return ringnet.ListenMulticast(network, ifi, group) },
		Leave: func(member net.PacketConn, group string) error {
			addr, err := net.ResolveUDPAddr("udp", group)
			if err != nil {
				return err
			}
			return member.(*ringnet.PacketConn).LeaveGroup(ifi, addr)
		},
		Sender: func(net.PacketConn) error { return nil }, // it is at the host's address
	}
}

// interfaceOf returns the interface that has an address.
func interfaceOf(t testing.TB, host string) *net.Interface {
	t.Helper()
	all, err := net.Interfaces()
	require.NoError(t, err)
	for _, ifi := range all {
		addrs, err := ifi.Addrs()
		require.NoError(t, err)
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().String() == host {
				return &ifi
			}
		}
	}
	require.Fail(t, "no interface has the address", host)
	return nil
}

func testPacketConn(t *testing.T, network, host string, most int, groups *packettest.Groups) {
	packettest.Test(t, packettest.Network{
		Listen: func(address string) (net.PacketConn, error) { return ringnet.ListenPacket(network, address) },
		Dial:   func(address string) (net.Conn, error) { return ringnet.Dial(network, address) },
		Batch:  func(c net.PacketConn) packettest.Batcher { return packettest.Batches(c.(*ringnet.PacketConn)) },
		Host:   host,
		Most:   most,
		Burst:  64,
		Prompt: network == "shm-udp",
		Groups: groups,
	})
}

// A sender that claims another's address gets none of the answers to it.
func TestPacketConnAnswersTheOwnerOfAnAddress(t *testing.T) {
	owner, server := listenPackets(t, "shm-udp"), listenPackets(t, "shm-udp")
	f, err := shm.Fabric()
	require.NoError(t, err)
	liar, err := f.(fabric.Datagrams).ListenPacket(netip.MustParseAddrPort("127.0.0.1:0"), fabric.DatagramOptions{RecvQueue: 1})
	require.NoError(t, err)
	defer liar.Close()
	h, err := liar.Resolve(context.Background(), addrPortOf(server))
	require.NoError(t, err)
	defer h.Close()
	lie := fabric.Datagram{To: h, Buffers: [][]byte{[]byte("I am another")}}
	wire.DatagramHeader{SourcePort: addrPortOf(owner).Port()}.Put(&lie.Header)
	liar.Send([]fabric.Datagram{lie})
	require.Equal(t, fabric.OK, lie.Status)

	_, err = owner.WriteToUDPAddrPort([]byte("I am I"), addrPortOf(server))
	require.NoError(t, err)
	p := make([]byte, 100)
	n, from, err := server.ReadFromUDPAddrPort(p)
	require.NoError(t, err)
	require.Equal(t, "I am I", string(p[:n]))
	_, err = server.WriteToUDPAddrPort([]byte("answer"), from)
	require.NoError(t, err)
	n, _, err = owner.ReadFromUDPAddrPort(p)
	require.NoError(t, err)
	require.Equal(t, "answer", string(p[:n]))
}
