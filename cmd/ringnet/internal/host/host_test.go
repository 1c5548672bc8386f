package host

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// write makes the files of a Tree.
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
	require.Empty(t, Tree(root).Devices())
	const port = class + "/rxe0/ports/1/"
	write(t, root, map[string]string{
		class + "/rxe0/parent":                 "eth0",
		port + "state":                         "4: ACTIVE",
		port + "link_layer":                    "Ethernet",
		port + "rate":                          "2.5 Gb/sec (1X SDR)",
		port + "gids/0":                        "fe80:0000:0000:0000:5054:00ff:fe12:3456",
		port + "gids/1":                        "0000:0000:0000:0000:0000:ffff:0a00:0001",
		port + "gids/2":                        "0000:0000:0000:0000:0000:0000:0000:0000",
		port + "gid_attrs/types/0":             "RoCE v2",
		port + "gid_attrs/types/1":             "RoCE v2",
		port + "gid_attrs/ndevs/0":             "eth0",
		"sys/class/net/eth0/mtu":               "1500",
		class + "/mlx5_0/fw_ver":               "20.31.1014",
		class + "/mlx5_0/device/numa_node":     "1",
		class + "/mlx5_0/device/local_cpulist": "4-7",
		"sys/devices/system/node/online":       "0-1",
		class + "/mlx5_0/ports/2/state":        "1: DOWN",
		class + "/mlx5_0/ports/10/state":       "1: DOWN",
	})
	devices := Tree(root).Devices()
	require.Len(t, devices, 2)
	require.Equal(t, "20.31.1014", devices[0].Firmware)
	require.Equal(t, &Near{Node: 1, Processors: "4-7"}, devices[0].Near)
	require.Equal(t, []int{2, 10}, []int{devices[0].Ports[0].Number, devices[0].Ports[1].Number})
	require.False(t, devices[0].Ports[0].Usable())
	require.Equal(t, Device{Name: "rxe0", Driver: "rdma_rxe", Ports: []Port{{
		Number: 1, State: "ACTIVE", LinkLayer: "Ethernet", Rate: "2.5 Gb/sec (1X SDR)",
		Interfaces: []Interface{{Name: "eth0", MTU: 1500, RoCEMTU: 1024, gids: addressSet("fe80::5054:ff:fe12:3456")}},
		GIDs: []GID{
			{0, "fe80:0000:0000:0000:5054:00ff:fe12:3456", "RoCE v2"},
			{1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"},
		},
	}}}, devices[1])
	require.False(t, devices[1].Ports[0].Usable(), "this host has no eth0 with one of these addresses")
}

func addressSet(all ...string) map[netip.Addr]bool {
	set := make(map[netip.Addr]bool)
	for _, a := range all {
		set[netip.MustParseAddr(a)] = true
	}
	return set
}

// A ConnectX of InfiniBand as the kernel shows it: gid_attrs/ndevs are there, and to read one fails
// (openucx/ucx#5321).
func TestInterfacesOfInfiniBandAreThoseOfIPoIB(t *testing.T) {
	root := t.TempDir()
	const net = "sys/class/net/"
	write(t, root, map[string]string{
		class + "/mlx5_0/ports/1/state":      "4: ACTIVE",
		class + "/mlx5_0/ports/1/link_layer": "InfiniBand",
		class + "/mlx5_0/ports/1/gids/0":     "fe80:0000:0000:0000:0002:c903:00aa:0001",
		class + "/mlx5_1/ports/1/state":      "4: ACTIVE",
		class + "/mlx5_1/ports/1/link_layer": "InfiniBand",
		class + "/mlx5_1/ports/1/gids/0":     "fe80:0000:0000:0000:0002:c903:00aa:0002",
		net + "eth0/type":                    "1",
		net + "eth0/address":                 "02:c9:03:aa:00:01",
		net + "ib0/type":                     "32",
		net + "ib0/mtu":                      "2044",
		net + "ib0/address":                  "80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:aa:00:01",
		net + "ib0.8001/type":                "32", // of another P_Key, whose queue pair is another one
		net + "ib0.8001/mtu":                 "2044",
		net + "ib0.8001/address":             "80:00:02:0a:fe:80:00:00:00:00:00:00:00:02:c9:03:00:aa:00:01",
		net + "bonding_masters":              "bond0", // a file
	})
	devices := Tree(root).Devices()
	require.Equal(t, []Interface{{Name: "ib0", MTU: 2044}, {Name: "ib0.8001", MTU: 2044}}, devices[0].Ports[0].Interfaces)
	require.Empty(t, devices[1].Ports[0].Interfaces)
}

func TestInterfacesOfRoCEAreAllWithItsGIDs(t *testing.T) {
	root := t.TempDir()
	const port = class + "/mlx5_0/ports/1/"
	files := map[string]string{port + "link_layer": "Ethernet", "sys/class/net/eth0/mtu": "9000", "sys/class/net/eth0.7/mtu": "1500"}
	for i, gid := range [][2]string{
		{"fe80:0000:0000:0000:aabb:ccff:fe00:0100", "eth0"}, // the interface itself has no address
		{"fe80:0000:0000:0000:aabb:ccff:fe00:0100", "eth0"},
		{"0000:0000:0000:0000:0000:ffff:0a07:0001", "eth0.7"},
		{"0000:0000:0000:0000:0000:ffff:0a08:0001", "macvlan1"},
	} {
		files[port+"gids/"+strconv.Itoa(i)], files[port+"gid_attrs/ndevs/"+strconv.Itoa(i)] = gid[0], gid[1]
	}
	write(t, root, files)
	require.Equal(t, []Interface{
		{"eth0", 9000, 4096, addressSet("fe80::aabb:ccff:fe00:100")},
		{"eth0.7", 1500, 1024, addressSet("10.7.0.1")},
		{"macvlan1", 0, 0, addressSet("10.8.0.1")},
	}, Tree(root).Devices()[0].Ports[0].Interfaces)
}

// In a container, /sys tells the names of the host's interfaces.
func TestInterfaceOfTheSameNameInAnotherNamespace(t *testing.T) {
	require.True(t, Interface{Name: "lo", gids: addressSet("127.0.0.1")}.IsHere())
	require.True(t, Interface{Name: "lo"}.IsHere(), "of IPoIB")
	require.False(t, Interface{Name: "nowhere"}.IsHere())
	interfaces, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range interfaces {
		if slices.ContainsFunc(addresses(i.Name), func(a netip.Prefix) bool { return a.Addr().IsGlobalUnicast() }) {
			require.False(t, Interface{Name: i.Name, gids: addressSet("192.0.2.1")}.IsHere())
			require.Empty(t, Interface{Name: i.Name, gids: addressSet("192.0.2.1")}.Addresses())
		}
	}
}

func TestCardOfAnAddress(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		class + "/mlx5_0/ports/1/gids/0":            "0000:0000:0000:0000:0000:ffff:7f00:0001",
		class + "/mlx5_0/ports/1/gid_attrs/ndevs/0": "nowhere",
		class + "/mlx5_1/ports/1/gids/0":            "0000:0000:0000:0000:0000:ffff:7f00:0001",
		class + "/mlx5_1/ports/1/gid_attrs/ndevs/0": "lo",
	})
	cards := Tree(root).Cards()
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
	for _, n := range Tree(root).Nodes() {
		require.True(t, n.Missing(), n.Path)
	}
	write(t, root, map[string]string{"dev/infiniband/rdma_cm": "", "dev/infiniband/uverbs0": ""})
	for _, n := range Tree(root).Nodes() {
		require.NoError(t, n.Err, n.Path)
	}
}

func TestExclusiveNamespaces(t *testing.T) {
	root := t.TempDir()
	require.False(t, Tree(root).ExclusiveNamespaces())
	for text, want := range map[string]bool{"Y": false, "N": true} {
		write(t, root, map[string]string{"sys/module/ib_core/parameters/netns_mode": text})
		require.Equal(t, want, Tree(root).ExclusiveNamespaces())
	}
}

func TestProvider(t *testing.T) {
	root := t.TempDir()
	card := Device{Driver: "mlx5_core"}
	name, installed := Tree(root).Provider(card)
	require.Equal(t, "mlx5", name)
	require.False(t, installed)
	write(t, root, map[string]string{"usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so": ""})
	_, installed = Tree(root).Provider(card)
	require.True(t, installed)
	name, _ = Tree(root).Provider(Device{Driver: "a new one"})
	require.Empty(t, name, "is not known, so nothing is said of it")
}

func TestTrafficClass(t *testing.T) {
	root := t.TempDir()
	require.Empty(t, Tree(root).TrafficClass("mlx5_0"))
	write(t, root, map[string]string{"sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos": "106"})
	require.Equal(t, "106", Tree(root).TrafficClass("mlx5_0"))
}
