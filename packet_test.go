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
		testPacketConn(t, "shm-udp", "127.0.0.1")
	})
	for name, env := range map[string]string{"rdma": "SOFTROCE_ADDR", "rdma6": "SOFTROCE_ADDR6"} {
		t.Run(name, func(t *testing.T) {
			if os.Getenv(env) == "" {
				t.Skip(env, "is not set; bin/softroce sets it where there is an RDMA device")
			}
			testPacketConn(t, "rdma-udp", os.Getenv(env))
		})
	}
}

func testPacketConn(t *testing.T, network, host string) {
	packettest.Test(t, packettest.Network{
		Listen: func(address string) (net.PacketConn, error) { return ringnet.ListenPacket(network, address) },
		Dial:   func(address string) (net.Conn, error) { return ringnet.Dial(network, address) },
		Batch:  func(c net.PacketConn) packettest.Batcher { return packettest.Batches(c.(*ringnet.PacketConn)) },
		Host:   host,
		Most:   4088,
		Burst:  64,
		Prompt: network == "shm-udp",
	})
}

// Who says that it has another's address gets nothing that is for the other.
func TestAnswersGoToTheOwnerOfAnAddress(t *testing.T) {
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
