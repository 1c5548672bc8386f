package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/host"
)

func TestInfoSaysWhatAutoOffers(t *testing.T) {
	out, err := commandProcess("info").Output()
	require.NoError(t, err)
	require.Regexp(t, `(?m)^auto offers (shm, )?(rdma, )?tcp$`, string(out))
	require.Regexp(t, `(?m)^memory of links: .* at most in a process$`, string(out))

	var i info
	out, err = commandProcess("info", "--json").Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &i))
	require.Contains(t, i.Auto.Offers, "tcp")
	require.Len(t, i.Auto.PassedOver, 3-len(i.Auto.Offers))
	require.Positive(t, i.Memory.Link)
	require.NotNil(t, i.Devices)
}

func TestInfoDescribesDevices(t *testing.T) {
	var out strings.Builder
	port := host.Port{Number: 1, State: "ACTIVE", LinkLayer: "Ethernet", Rate: "100 Gb/sec", Interfaces: []host.Interface{{Name: "eth0", MTU: 1500, RoCEMTU: 1024}, {Name: "eth0.7", MTU: 9000, RoCEMTU: 4096}}, GIDs: []host.GID{{Index: 3, GID: "fe80::1", Type: "RoCE v2"}}}
	card := deviceInfo{Device: host.Device{Name: "mlx5_0", Driver: "mlx5_core", Firmware: "20.1", Near: &host.Near{Node: 1, Processors: "16-31", Vectors: "0-15"}, Ports: []host.Port{port, {Number: 2, State: "DOWN"}}}, Addresses: map[string][]string{"eth0": {"10.0.0.1/24"}}}
	require.NoError(t, infoText.Execute(&out, info{Devices: []deviceInfo{card, {Device: host.Device{Name: "siw0", IWARP: true}}}, Library: libraryInfo{Version: "44.0", Path: "/usr/lib/libibverbs.so.1", Packages: []string{"ibverbs-providers 44.0-2"}}, Memory: memoryInfo{Limit: 1 << 30, LockedLimit: 64 << 10}}))
	require.Contains(t, out.String(), `mlx5_0, driver mlx5_core, firmware 20.1
  near NUMA node 1: processors 16-31, completion vectors 0-15
  port 1 is ACTIVE: Ethernet, 100 Gb/sec
    on eth0 with an MTU of 1500 (RoCE: 1024): 10.0.0.1/24
    on eth0.7 with an MTU of 9000 (RoCE: 4096)
    GID 3: fe80::1, RoCE v2
  port 2 is DOWN: , `+`
siw0, iWARP, which ringnet refuses
rdma-core 44.0 (ibverbs-providers 44.0-2)

memory of links: 1.0 GiB at most in a process
`)
	require.Contains(t, out.String(), "  for devices 64 KiB may be locked, which is too little for a connection (ulimit -l, LimitMEMLOCK=)\n")
}

func TestInfoOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		var i info
		out, err := commandProcess("info", "--json").Output()
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(out, &i))
		require.Contains(t, i.Auto.Offers, "rdma")
		for _, d := range i.Devices {
			if d.Name != os.Getenv("SOFTROCE_DEVICE") {
				continue
			}
			p := d.Ports[0]
			require.True(t, p.Usable())
			require.Len(t, p.Interfaces, 1)
			i := p.Interfaces[0]
			require.Equal(t, os.Getenv("SOFTROCE_NETDEV"), i.Name)
			require.Equal(t, "Ethernet", p.LinkLayer)
			require.NotZero(t, i.RoCEMTU)
			require.NotEmpty(t, p.GIDs)
			require.Contains(t, p.GIDs[0].Type, "RoCE")
			require.Contains(t, d.Addresses[i.Name][0], os.Getenv("SOFTROCE_ADDR"))
			return
		}
		require.Fail(t, "no device "+os.Getenv("SOFTROCE_DEVICE"), string(out))
	})
}
