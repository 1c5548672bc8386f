package fabric

import (
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlain(t *testing.T) {
	all, err := net.Interfaces()
	require.NoError(t, err)
	require.NotEmpty(t, all)
	name, index := all[0].Name, strconv.Itoa(all[0].Index)
	for text, want := range map[string]string{
		"192.0.2.1:7":                  "192.0.2.1:7",
		"[::ffff:192.0.2.1]:7":         "192.0.2.1:7",
		"[2001:db8::1%" + name + "]:7": "[2001:db8::1]:7",
		"[fe80::1%" + name + "]:7":     "[fe80::1%" + name + "]:7",
		"[fe80::1%" + index + "]:7":    "[fe80::1%" + name + "]:7",
		"[ff02::1%" + index + "]:7":    "[ff02::1%" + name + "]:7",
		"[fe80::1%4000000000]:7":       "[fe80::1%4000000000]:7",
		"[fe80::1%0x]:7":               "[fe80::1%0x]:7",
		"[fe80::1]:7":                  "[fe80::1]:7",
	} {
		require.Equal(t, want, Plain(netip.MustParseAddrPort(text)).String(), text)
	}
	require.Equal(t, netip.AddrPort{}, Plain(netip.AddrPort{}))
}

func TestZonesHaveTheNamesOfInterfaces(t *testing.T) {
	lo, err := net.InterfaceByIndex(1)
	require.NoError(t, err)
	require.Equal(t, lo.Name, ZoneName(1))
	require.Equal(t, "2000000000", ZoneName(2_000_000_000))
}

// Each datagram that is sent has its destination made plain.
func TestPlainAllocatesNothing(t *testing.T) {
	for _, text := range []string{"192.0.2.1:7", "[2001:db8::1]:7", "[fe80::1%eth0]:7"} {
		a := netip.MustParseAddrPort(text)
		require.Zero(t, testing.AllocsPerRun(100, func() { a = Plain(a) }), text)
	}
}
