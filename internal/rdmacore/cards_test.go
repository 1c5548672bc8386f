//go:build linux && cgo

package rdmacore

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The virtual functions of a port share its cable, so they are one card with it. Two ports
// of a card are two.
func TestVirtualFunctionsOfAPortAreOneCard(t *testing.T) {
	sysfs := t.TempDir()
	pci := func(address, physical string) string {
		dir := filepath.Join(sysfs, "pci", address)
		require.NoError(t, os.MkdirAll(dir, 0o700))
		if physical != "" {
			require.NoError(t, os.Symlink(filepath.Join("..", physical), filepath.Join(dir, "physfn")))
		}
		return dir
	}
	for device, function := range map[string]string{
		"mlx5_0": pci("3b:00.0", ""), "mlx5_2": pci("3b:00.2", "3b:00.0"), "mlx5_3": pci("3b:00.3", "3b:00.0"),
		"mlx5_1": pci("3b:00.1", ""), "mlx5_4": pci("3b:00.4", "3b:00.1"),
	} {
		require.NoError(t, os.Mkdir(filepath.Join(sysfs, device), 0o700))
		require.NoError(t, os.Symlink(function, filepath.Join(sysfs, device, "device")))
	}
	for _, same := range [][]string{{"mlx5_0", "mlx5_2", "mlx5_3"}, {"mlx5_1", "mlx5_4"}} {
		for _, device := range same {
			assert.Equal(t, functionOf(sysfs, same[0]), functionOf(sysfs, device), device)
		}
	}
	assert.NotEqual(t, functionOf(sysfs, "mlx5_0"), functionOf(sysfs, "mlx5_1"))
	assert.NotEqual(t, functionOf(sysfs, "rxe0"), functionOf(sysfs, "rxe1"), "without a PCI device")
}

// A port has the interfaces of its VLANs, too.
func TestTheInterfaceOfAPortIsThatOfTheAddress(t *testing.T) {
	port := t.TempDir()
	for i, gid := range []struct{ gid, ifi string }{
		{"fe80:0000:0000:0000:aabb:ccff:fe00:0100", "eth0"},
		{"0000:0000:0000:0000:0000:ffff:0a00:0001", "eth0"},
		{"0000:0000:0000:0000:0000:0000:0000:0000", ""},
		{"fe80:0000:0000:0000:aabb:ccff:fe00:0100", "eth0.7"},
		{"0000:0000:0000:0000:0000:ffff:0a07:0001", "eth0.7"},
		{"2001:0db8:0000:0000:0000:0000:0000:0007", "eth0.7"},
	} {
		for dir, text := range map[string]string{"gids": gid.gid, "gid_attrs/ndevs": gid.ifi} {
			writeFile(t, text, port, dir, strconv.Itoa(i))
		}
	}
	for address, want := range map[string]string{
		"10.0.0.1": "eth0", "10.7.0.1": "eth0.7", "2001:db8::7": "eth0.7", "10.0.0.2": "",
		"fe80::aabb:ccff:fe00:100%eth0.7": "eth0.7",
	} {
		assert.Equal(t, want, interfaceOf(port, netip.MustParseAddr(address)), address)
	}
}

// writeFile writes a file of /sys, and makes its folder.
func writeFile(t *testing.T, text string, path ...string) {
	t.Helper()
	name := filepath.Join(path...)
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
	require.NoError(t, os.WriteFile(name, []byte(text+"\n"), 0o600))
}
