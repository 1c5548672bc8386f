package rdmaudp

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/rdmaudp/internal/ud"
)

// A dialed Conn takes its receiver's answers, however the zone in its address was written.
func TestDialedZoneMayBeWrittenInAnyForm(t *testing.T) {
	lo, err := net.InterfaceByIndex(1)
	require.NoError(t, err)
	for dialed, from := range map[string]string{
		"[::1%" + lo.Name + "]:2":  "[::1]:2",
		"[fe80::1%1]:2":            "[fe80::1%" + lo.Name + "]:2",
		"[fe80::1%none]:2":         "[fe80::1%none]:2",
		"[::ffff:10.0.0.2%none]:2": "10.0.0.2:2",
	} {
		p := &post{}
		c := open(t, p, netip.MustParseAddrPort(dialed))
		require.Equal(t, from, c.RemoteAddr().String())
		p.arrives(netip.MustParseAddrPort(from), ud.Header{SourcePort: 2}, "x")
		require.Equal(t, "x", read(t, c), dialed)
	}
}

// The unspecified address stands for this host, and so does an address without an IP, as for
// UDP.
func TestTargets(t *testing.T) {
	lo, err := net.InterfaceByIndex(1)
	require.NoError(t, err)
	for _, test := range []struct{ local, to, want string }{
		{"10.0.0.1:1", "0.0.0.0:2", "10.0.0.1:2"},
		{"10.0.0.1:1", "[::]:2", "10.0.0.1:2"},
		{"0.0.0.0:1", "0.0.0.0:2", "127.0.0.1:2"},
		{"0.0.0.0:1", "[::]:2", "127.0.0.1:2"},
		{"[::]:1", "0.0.0.0:2", "127.0.0.1:2"},
		{"[::]:1", "[::]:2", "[::1]:2"},
		{"[::]:1", "10.0.0.2:2", "10.0.0.2:2"},
		{"[::1]:1", "[::]:2", "[::1]:2"},
		{"10.0.0.1:1", "[::ffff:10.0.0.2]:2", "10.0.0.2:2"},
		{"[fe80::1%1]:1", "[fe80::2%1]:2", "[fe80::2%" + lo.Name + "]:2"},
		{"[fe80::1%1]:1", "[fe80::2%none]:2", "[fe80::2%none]:2"},
		{"[fd00::1]:1", "[fd00::2%lo]:2", "[fd00::2]:2"},
		{"10.0.0.1:1", "[fd00::2]:2", "write rdma-udp 10.0.0.1:1->[fd00::2]:2: address fd00::2: non-IPv4 address"},
		{"0.0.0.0:1", "[ff02::2]:2", "write rdma-udp 0.0.0.0:1->[ff02::2]:2: address ff02::2: non-IPv4 address"},
		{"10.0.0.1:1", "255.255.255.255:2", "write rdma-udp 10.0.0.1:1->255.255.255.255:2: no broadcast: unsupported operation"},
		{"[::]:1", "[::ffff:255.255.255.255]:2", "write rdma-udp [::]:1->255.255.255.255:2: no broadcast: unsupported operation"},
		{"[fd00::1]:1", "10.0.0.2:2", "write rdma-udp [fd00::1]:1->10.0.0.2:2: address 10.0.0.2: non-IPv6 address"},
	} {
		to := netip.MustParseAddrPort(test.to)
		p := &post{local: netip.MustParseAddrPort(test.local)}
		c := open(t, p, netip.AddrPort{})
		addrs := []net.Addr{net.UDPAddrFromAddrPort(to)}
		if to == netip.MustParseAddrPort("[::]:2") {
			addrs = append(addrs, &net.UDPAddr{Port: 2})
		}
		for _, a := range addrs {
			_, err := c.WriteTo([]byte("x"), a)
			if err != nil {
				require.EqualError(t, err, test.want)
				_, err = c.WriteBatch([]Message{{Buffers: [][]byte{{1}}, Addr: a}}, 0)
				require.EqualError(t, err, test.want)
				continue
			}
			_, err = c.WriteBatch([]Message{{Buffers: [][]byte{{1}}, Addr: a}}, 0)
			require.NoError(t, err)
		}
		require.NoError(t, c.Close())
		for _, at := range p.closed {
			require.Equal(t, test.want, at.String())
		}
	}
}
