package rdmaudp_test

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/rdmaudp"
	"github.com/ringnet/ringnet/rdmaudp/internal/testing/packettest"
)

func TestPacketConn(t *testing.T) {
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
		Listen: func(group string) (net.PacketConn, error) {
			return orNil(rdmaudp.ListenMulticast(network, ifi, group))
		},
		Leave: func(member net.PacketConn, group string) error {
			addr, err := net.ResolveUDPAddr("udp", group)
			if err != nil {
				return err
			}
			return member.(*rdmaudp.PacketConn).LeaveGroup(ifi, addr)
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
		Listen: func(address string) (net.PacketConn, error) {
			return orNil(rdmaudp.Listen(network, address))
		},
		Dial: func(address string) (net.Conn, error) {
			c, err := orNil(rdmaudp.Dial(network, address))
			if err != nil {
				return nil, err
			}
			return c.(net.Conn), nil
		},
		Batch:  func(c net.PacketConn) packettest.Batcher { return batchesOf(c.(*rdmaudp.PacketConn)) },
		Host:   host,
		Most:   most,
		Burst:  64,
		Groups: groups,
	})
}

// orNil returns an interface that is nil if there is an error.
func orNil(c *rdmaudp.PacketConn, err error) (net.PacketConn, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}
