//go:build linux

package integration_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

func TestIPv6(t *testing.T) {
	addr := requireEnv(t, "SOFTROCE_ADDR6")
	for _, network := range []string{"rdma", "rdma6"} {
		requireConnects(t, network, addr, addr)
		requireConnects(t, network, "", addr)
	}
	_, err := ringnet.Dial("rdma4", net.JoinHostPort(addr, "7"))
	require.ErrorContains(t, err, "no suitable address")
}

func TestIPv6WithAZone(t *testing.T) {
	addr := linkLocal(t)
	requireConnects(t, "rdma", addr, addr)
	requireConnects(t, "rdma6", "::", addr)
}

// requireConnects requires that a listener at one address can be dialed at the other, and
// that both ends know the addresses.
func requireConnects(t *testing.T, network, listenAt, dialAt string) {
	t.Helper()
	l, err := ringnet.Listen(network, net.JoinHostPort(listenAt, "0"))
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	addr := net.JoinHostPort(dialAt, port)
	d, err := ringnet.Dial(network, addr)
	require.NoError(t, err)
	defer d.Close()
	a := accept(t, l)
	requireEcho(t, d, a)
	require.Equal(t, addr, d.RemoteAddr().String())
	require.Equal(t, addr, a.LocalAddr().String())
	require.Equal(t, d.LocalAddr(), a.RemoteAddr())
	require.Equal(t, "rdma", a.RemoteAddr().Network())
}

// linkLocal returns the link-local address of the device's interface, with a zone.
func linkLocal(t *testing.T) string {
	t.Helper()
	name := requireEnv(t, "SOFTROCE_NETDEV")
	ifi, err := net.InterfaceByName(name)
	require.NoError(t, err)
	addrs, err := ifi.Addrs()
	require.NoError(t, err)
	for _, a := range addrs {
		if ip := netip.MustParsePrefix(a.String()).Addr(); ip.Is6() && ip.IsLinkLocalUnicast() {
			return ip.WithZone(name).String()
		}
	}
	unless(t, false, name+" has no link-local address")
	return ""
}
