package ud

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddressesOf(t *testing.T) {
	v4 := []byte{0x45, 0, 0, 60, 1, 2, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}
	v6 := func(source string) (b [grhSize]byte) {
		b[0] = 0x60
		copy(b[8:], netip.MustParseAddr(source).AsSlice())
		copy(b[24:], netip.MustParseAddr("fd00::2").AsSlice())
		return b
	}
	ipv4 := func(before byte, sum uint16) (b [grhSize]byte) {
		for i := range b[:20] {
			b[i] = before
		}
		copy(b[20:], v4)
		binary.BigEndian.PutUint16(b[30:], sum)
		return b
	}
	const sum = 0x25ad // of v4
	for name, test := range map[string]struct {
		grh      [grhSize]byte
		from, to string
	}{
		"IPv4, with zeros before it":            {ipv4(0, 0), "10.0.0.1", "10.0.0.2"},
		"IPv4, with anything before it":         {ipv4(0x66, sum), "10.0.0.1", "10.0.0.2"},
		"IPv6 that looks nearly like it":        {ipv4(0x66, sum+1), "6666:6666:6666:6666:6666:6666:4500:3c", "102:4000:4011:25ae:a00:1:a00:2"},
		"IPv6":                                  {v6("fd00::1"), "fd00::1", "fd00::2"},
		"a GID that is an IPv4 address, RoCE 1": {v6("::ffff:10.0.0.1"), "10.0.0.1", "fd00::2"},
		"IPv6, link-local":                      {v6("fe80::1"), "fe80::1%eth7", "fd00::2"},
	} {
		from, to := addressesOf(&test.grh, "eth7")
		require.Equal(t, netip.MustParseAddr(test.from), from, name)
		require.Equal(t, netip.MustParseAddr(test.to), to, name)
	}
	from, to := addressesOf(new([grhSize]byte), "")
	require.Zero(t, from)
	require.Zero(t, to)
}
