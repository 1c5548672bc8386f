//go:build linux

package integration_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet"
)

// requireTrafficClass fetches some bytes from node 1 over a connection with a traffic
// class, and requires that packets of that class pass this node's interface both ways: the
// listener, whose Config has no class, answers in the dialer's.
func requireTrafficClass(t *testing.T) {
	t.Helper()
	const class, n = 106, 4096
	packets := sniff(t)
	d := ringnet.Dialer{Config: &ringnet.Config{TrafficClass: class}}
	c, err := d.Dial("rdma", net.JoinHostPort(os.Getenv("SOFTROCE_PEER"), nodePort))
	require.NoError(t, err)
	defer c.Close()
	_, err = fmt.Fprintln(c, "send", n)
	require.NoError(t, err)
	require.NoError(t, fetch(c.(*ringnet.Conn), n, func() {}))

	ways := make(map[bool]int)
	for len(ways) < 2 {
		tos, outgoing := nextRoCE(t, packets)
		if tos == class {
			ways[outgoing]++
		}
	}
}

// sniff returns a socket that gets the IP packets that this node's interface sends and
// receives.
func sniff(t *testing.T) int {
	t.Helper()
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)) // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	ifi, err := net.InterfaceByName(requireEnv(t, "SOFTROCE_NETDEV"))
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index}))
	return fd
}

// nextRoCE returns the type of service of the next packet of a connected queue pair, which
// is a UDP packet to port 4791 with an opcode of class RC, and whether this node sent it.
func nextRoCE(t *testing.T, packets int) (tos byte, outgoing bool) {
	t.Helper()
	b := make([]byte, 64)
	for {
		n, from, err := unix.Recvfrom(packets, b, unix.MSG_DONTWAIT)
		require.NoError(t, err, "no packet of that class")
		const ip, udp = 20, 8
		if n <= ip+udp || b[0] != 0x45 || b[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(b[ip+2:]) != 4791 || b[ip+udp]>>5 != 0 {
			continue
		}
		return b[1], from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING
	}
}
