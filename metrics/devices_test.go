package metrics

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// emitted has the values that were emitted, by the name of the metric and the values of its
// labels.
type emitted map[string]float64

func (e emitted) emit(m *metric, value float64, labels ...string) {
	e[strings.Join(append([]string{m.name}, labels...), " ")] = value
}

func TestPortsOfACard(t *testing.T) {
	sysfs := t.TempDir()
	for path, text := range map[string]string{
		"state":                     "4: ACTIVE",
		"rate":                      "100 Gb/sec (4X EDR)",
		"counters/port_rcv_data":    "25",
		"counters/port_xmit_data":   "50",
		"counters/link_downed":      "1",
		"counters/broken":           "N/A (no PMA)",
		"hw_counters/out_of_buffer": "3",
		"hw_counters/lifespan":      "10",
		"../1/state":                "1: DOWN",
	} {
		path = filepath.Join(sysfs, "mlx5_0/ports/2", path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o644))
	}
	got := make(emitted)
	emitPort(got.emit, sysfs, "mlx5_0", "1")
	emitPort(got.emit, sysfs, "mlx5_0", "2")
	require.Equal(t, emitted{
		"ringnet_device_port_up mlx5_0 1":                         0,
		"ringnet_device_port_up mlx5_0 2":                         1,
		"ringnet_device_port_rate_bytes_per_second mlx5_0 2":      12.5e9,
		"ringnet_device_port_received_bytes_total mlx5_0 2":       100,
		"ringnet_device_port_sent_bytes_total mlx5_0 2":           200,
		"ringnet_device_port_events_total mlx5_0 2 link_downed":   1,
		"ringnet_device_port_events_total mlx5_0 2 out_of_buffer": 3,
	}, got)
}

func TestHostWithoutADevice(t *testing.T) {
	if entries, _ := os.ReadDir(sysfs); len(entries) > 0 {
		t.Skip("this host has an RDMA device")
	}
	got := make(emitted)
	readDevices(got.emit)
	require.Equal(t, emitted{"ringnet_devices_read": 1}, got)
}

// The device counts what a connection sends.
func TestDevicesOverRDMA(t *testing.T) {
	device := os.Getenv("SOFTROCE_DEVICE")
	if device == "" {
		require.Empty(t, os.Getenv("RINGNET_REQUIRE_RDMA"), "SOFTROCE_DEVICE is not set")
		t.Skip("no RDMA device: SOFTROCE_DEVICE is not set; bin/softroce runs this where there is one")
	}
	counts := func() (all emitted, sum float64) {
		all = make(emitted)
		readDevices(all.emit)
		for name, n := range all {
			if strings.HasPrefix(name, "ringnet_device_port_events_total "+device+" 1 ") {
				sum += n
			}
		}
		return all, sum
	}
	before, sumBefore := counts()
	require.Equal(t, 1.0, before["ringnet_devices_read"])
	require.Equal(t, 1.0, before["ringnet_device_port_up "+device+" 1"])
	require.Positive(t, before["ringnet_device_port_rate_bytes_per_second "+device+" 1"])

	requireCounted(t, "rdma", os.Getenv("SOFTROCE_ADDR"))
	_, sum := counts()
	require.Greater(t, sum, sumBefore)
	require.Positive(t, gather(t)["ringnet_locked_memory_used_bytes"])
}
