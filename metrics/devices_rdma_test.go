package metrics

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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

	requireTotals(t, over(t, "rdma", os.Getenv("SOFTROCE_ADDR")))
	_, sum := counts()
	require.Greater(t, sum, sumBefore)
	require.Equal(t, 2.0, gather(t)[`ringnet_links{network="rdma"}`])
	require.Positive(t, gather(t)["ringnet_locked_memory_used_bytes"])
}
