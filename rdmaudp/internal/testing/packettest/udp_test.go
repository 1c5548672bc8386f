//go:build linux

package packettest

import (
	"errors"
	"net"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/ipv4"
)

// The suite is fair: UDP passes it.
func TestUDP(t *testing.T) {
	Test(t, Network{
		Listen: func(address string) (net.PacketConn, error) { return net.ListenPacket("udp", address) },
		Dial:   func(address string) (net.Conn, error) { return net.Dial("udp", address) },
		Batch:  func(c net.PacketConn) Batcher { return ipv4.NewPacketConn(c) },
		Host:   "127.0.0.1",
		Most:   65507,
		Burst:  64,
		Groups: udpGroups(t),
	})
}

// udpGroups are those at the loopback interface.
func udpGroups(t *testing.T) *Groups {
	all, err := net.Interfaces()
	require.NoError(t, err)
	i := slices.IndexFunc(all, func(i net.Interface) bool { return i.Flags&net.FlagLoopback != 0 })
	require.GreaterOrEqual(t, i, 0)
	loopback := &all[i]
	return &Groups{
		Listen: func(group string) (net.PacketConn, error) {
			addr, err := net.ResolveUDPAddr("udp4", group)
			if err != nil {
				return nil, err
			}
			c, err := net.ListenMulticastUDP("udp4", loopback, addr)
			if err == nil {
				err = onlyItsGroups(c)
			}
			return c, err
		},
		Leave: func(member net.PacketConn, group string) error {
			addr, err := net.ResolveUDPAddr("udp4", group)
			if err != nil {
				return err
			}
			return ipv4.NewPacketConn(member).LeaveGroup(loopback, addr)
		},
		Sender: func(c net.PacketConn) error {
			return errors.Join(ipv4.NewPacketConn(c).SetMulticastInterface(loopback), ipv4.NewPacketConn(c).SetMulticastLoopback(true))
		},
	}
}

// onlyItsGroups has a socket of Linux hear the groups that it has joined by itself, and
// not those of all others of the host.
func onlyItsGroups(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	const multicastAll = 49 // IP_MULTICAST_ALL of ip(7)
	failed := raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, multicastAll, 0)
	})
	return errors.Join(failed, err)
}
