//go:build linux && cgo

package verbs

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestZoneOf(t *testing.T) {
	const table = `00000000000000000000000000000001 01 80 10 80       lo
fe80000000000000a8bbccfffe000100 02 40 20 80     eth0
20010db8000000000000000000000001 02 40 00 00     eth0
fe80000000000000a8bbccfffe000102 0c 40 20 80 eth0.100
`
	for address, zone := range map[string]string{
		"fe80::a8bb:ccff:fe00:100": "eth0",
		"fe80::a8bb:ccff:fe00:102": "eth0.100",
		"fe80::1":                  "",
	} {
		assert.Equal(t, zone, zoneOf(netip.MustParseAddr(address), table))
	}
	assert.Empty(t, zoneOf(netip.MustParseAddr("fe80::1"), ""))
}

// The addresses of a request are the dialer's to choose, and come without zones.
func TestInZoneOfLinkLocalAddressesOnly(t *testing.T) {
	const inside = "RINGNET_VERBS_NAMESPACE"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) {
			t.Skip("only root can make a network namespace")
		}
		require.NoError(t, err, "%s", out)
		return
	}
	for _, args := range []string{"link set lo up", "addr add fe80::1/64 dev lo nodad"} {
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	for _, test := range [][4]string{
		{"[fe80::1]:80", "[fe80::2]:50000", "[fe80::1%lo]:80", "[fe80::2%lo]:50000"},
		{"[fe80::1]:80", "[2001:db8::2]:50000", "[fe80::1%lo]:80", "[2001:db8::2]:50000"},
		{"[fe80::9]:80", "[fe80::2]:50000", "[fe80::9]:80", "[fe80::2]:50000"},
		{"[2001:db8::1]:80", "[fe80::2]:50000", "[2001:db8::1]:80", "[fe80::2]:50000"},
		{"127.0.0.1:80", "127.0.0.1:50000", "127.0.0.1:80", "127.0.0.1:50000"},
	} {
		local, remote := inZone(netip.MustParseAddrPort(test[0]), netip.MustParseAddrPort(test[1]))
		assert.Equal(t, test[2], local.String())
		assert.Equal(t, test[3], remote.String())
	}
}
