package host

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// write makes the files of a tree.
func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for path, text := range files {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o644))
	}
}

func TestDevices(t *testing.T) {
	root := t.TempDir()
	require.Empty(t, tree(root).Devices())
	const port = class + "/rxe0/ports/1/"
	write(t, root, map[string]string{
		class + "/rxe0/parent":           "eth0",
		port + "state":                   "4: ACTIVE",
		port + "link_layer":              "Ethernet",
		port + "rate":                    "2.5 Gb/sec (1X SDR)",
		port + "gids/0":                  "fe80:0000:0000:0000:5054:00ff:fe12:3456",
		port + "gids/1":                  "0000:0000:0000:0000:0000:ffff:0a00:0001",
		port + "gids/2":                  "0000:0000:0000:0000:0000:0000:0000:0000",
		port + "gid_attrs/types/0":       "RoCE v2",
		port + "gid_attrs/types/1":       "RoCE v2",
		port + "gid_attrs/ndevs/0":       "eth0",
		"sys/class/net/eth0/mtu":         "1500",
		class + "/mlx5_0/fw_ver":         "20.31.1014",
		class + "/mlx5_0/ports/2/state":  "1: DOWN",
		class + "/mlx5_0/ports/10/state": "1: DOWN",
	})
	devices := tree(root).Devices()
	require.Len(t, devices, 2)
	require.Equal(t, "20.31.1014", devices[0].Firmware)
	require.Equal(t, []int{2, 10}, []int{devices[0].Ports[0].Number, devices[0].Ports[1].Number})
	require.False(t, devices[0].Ports[0].Usable())
	require.Equal(t, Device{Name: "rxe0", Driver: "rdma_rxe", Ports: []Port{{
		Number: 1, State: "ACTIVE", LinkLayer: "Ethernet", Rate: "2.5 Gb/sec (1X SDR)", Interface: "eth0", MTU: 1500, RoCEMTU: 1024,
		GIDs: []GID{
			{0, "fe80:0000:0000:0000:5054:00ff:fe12:3456", "RoCE v2"},
			{1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"},
		},
	}}}, devices[1])
	require.True(t, devices[1].Ports[0].Usable())
}

func TestCardOfAnAddress(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		class + "/mlx5_0/ports/1/gids/0":            "fe80:0000:0000:0000:0000:0000:0000:0001",
		class + "/mlx5_0/ports/1/gid_attrs/ndevs/0": "nowhere",
		class + "/mlx5_1/ports/1/gids/0":            "fe80:0000:0000:0000:0000:0000:0000:0001",
		class + "/mlx5_1/ports/1/gid_attrs/ndevs/0": "lo",
	})
	cards := tree(root).Cards()
	require.Equal(t, "mlx5_1", cards[netip.MustParseAddr("127.0.0.1")])
	require.Empty(t, cards[netip.MustParseAddr("192.0.2.1")])
}

func TestRoCEMTU(t *testing.T) {
	for mtu, want := range map[int]int{1500: 1024, 4200: 4096, 9000: 4096, 2048: 1024, 100: 0, 0: 0} {
		require.Equal(t, want, roceMTU(mtu), mtu)
	}
}

func TestNodes(t *testing.T) {
	root := t.TempDir()
	for _, n := range tree(root).Nodes() {
		require.True(t, n.Missing(), n.Path)
	}
	write(t, root, map[string]string{"dev/infiniband/rdma_cm": "", "dev/infiniband/uverbs0": ""})
	for _, n := range tree(root).Nodes() {
		require.NoError(t, n.Err, n.Path)
	}
}

func TestExclusiveNamespaces(t *testing.T) {
	root := t.TempDir()
	require.False(t, tree(root).ExclusiveNamespaces())
	for text, want := range map[string]bool{"Y": false, "N": true} {
		write(t, root, map[string]string{"sys/module/ib_core/parameters/netns_mode": text})
		require.Equal(t, want, tree(root).ExclusiveNamespaces())
	}
}

func TestProvider(t *testing.T) {
	root := t.TempDir()
	card := Device{Driver: "mlx5_core"}
	name, installed := tree(root).Provider(card)
	require.Equal(t, "mlx5", name)
	require.False(t, installed)
	write(t, root, map[string]string{"usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so": ""})
	_, installed = tree(root).Provider(card)
	require.True(t, installed)
	name, _ = tree(root).Provider(Device{Driver: "a new one"})
	require.Empty(t, name, "is not known, so nothing is said of it")
}

func TestTrafficClass(t *testing.T) {
	root := t.TempDir()
	require.Empty(t, tree(root).TrafficClass("mlx5_0"))
	write(t, root, map[string]string{"sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos": "106"})
	require.Equal(t, "106", tree(root).TrafficClass("mlx5_0"))
}
