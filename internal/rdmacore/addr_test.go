//go:build linux && cgo

package rdmacore

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
	for _, args := range []string{
		"link set lo up", "addr add fe80::1/64 dev lo nodad",
		"link add eth0.100 type veth", "link set eth0.100 up", "addr add fe80::3/64 dev eth0.100 nodad",
	} {
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	for _, test := range [][4]string{
		{"[fe80::1]:80", "[fe80::2]:50000", "[fe80::1%lo]:80", "[fe80::2%lo]:50000"},
		{"[fe80::1]:80", "[2001:db8::2]:50000", "[fe80::1%lo]:80", "[2001:db8::2]:50000"},
		{"[fe80::3]:80", "[fe80::2]:50000", "[fe80::3%eth0.100]:80", "[fe80::2%eth0.100]:50000"},
		{"[fe80::9]:80", "[fe80::2]:50000", "[fe80::9]:80", "[fe80::2]:50000"},
		{"[2001:db8::1]:80", "[fe80::2]:50000", "[2001:db8::1]:80", "[fe80::2]:50000"},
		{"127.0.0.1:80", "127.0.0.1:50000", "127.0.0.1:80", "127.0.0.1:50000"},
	} {
		local, remote := inZone(netip.MustParseAddrPort(test[0]), netip.MustParseAddrPort(test[1]))
		assert.Equal(t, test[2], local.String())
		assert.Equal(t, test[3], remote.String())
	}
}
