package metrics

import (
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

// registry is one with all collectors, which checks what they collect against what
// they describe.
func registry(t *testing.T) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(NewCollector()))
	require.NoError(t, r.Register(NewDeviceCollector()))
	return r
}

// gather collects everything: values by name{label="value",…}.
func gather(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := registry(t).Gather()
	require.NoError(t, err)
	values := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			values[f.GetName()+labels(m)] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return values
}

func labels(m *dto.Metric) string {
	var pairs []string
	for _, p := range m.Label {
		pairs = append(pairs, fmt.Sprintf("%s=%q", p.GetName(), p.GetValue()))
	}
	if pairs == nil {
		return ""
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

// connect connects this process with itself over shm, and returns both ends.
func connect(t *testing.T) (dialed, accepted *ringnet.Conn) {
	t.Helper()
	return connectAt(t, "shm", "127.0.0.1")
}

// connectAt is connect over another network, at an address of its. No link is left
// when the test has ended.
func connectAt(t *testing.T, network, host string) (dialed, accepted *ringnet.Conn) {
	t.Helper()
	t.Cleanup(func() {
		require.Eventually(t, func() bool {
			ringnet.CloseIdleLinks()
			return len(ringnet.Links()) == 0 && ringnet.Memory().Used == 0
		}, 10*time.Second, time.Millisecond, "links are left")
	})
	l, err := ringnet.Listen(network, net.JoinHostPort(host, "0"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	c, err := ringnet.Dial(network, l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	a, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = a.Close() })
	return c.(*ringnet.Conn), a.(*ringnet.Conn)
}

func TestLinksAndMemory(t *testing.T) {
	before := gather(t)
	connect(t)
	after := gather(t)
	rise := func(name string) float64 { return after[name] - before[name] }
	require.Equal(t, 2.0, rise(`ringnet_links{network="shm"}`), "one at each end")
	require.Equal(t, 2.0, rise(`ringnet_link_connections{network="shm"}`))
	require.Zero(t, rise(`ringnet_links{network="rdma"}`))
	require.Contains(t, after, `ringnet_links{network="rdma"}`)
	m := ringnet.Memory()
	require.Equal(t, float64(m.Used), after["ringnet_memory_used_bytes"])
	require.Positive(t, rise("ringnet_memory_used_bytes"))
	require.Equal(t, float64(m.Limit), after["ringnet_memory_limit_bytes"])
	require.Equal(t, float64(m.Locked), after["ringnet_locked_memory_used_bytes"])
	require.Equal(t, limit(m.LockedLimit), after["ringnet_locked_memory_limit_bytes"])
}

func TestLimitWithoutOneIsInfinite(t *testing.T) {
	require.Equal(t, math.Inf(1), limit(math.MaxInt))
	require.Equal(t, 65536.0, limit(65536))
}

func TestPromlintHasNoComplaint(t *testing.T) {
	problems, err := testutil.GatherAndLint(describing(t))
	require.NoError(t, err)
	require.Empty(t, problems)
}

// describing gathers one sample of each metric that is described.
func describing(t *testing.T) prometheus.Gatherer {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	for _, s := range sources() {
		require.NoError(t, r.Register(newCollector(*s.metrics, func(emit emitter) {
			for _, d := range *s.metrics {
				emit(d, 1, d.Labels...)
			}
		})))
	}
	return r
}

func TestDescriptionsAreComplete(t *testing.T) {
	families, err := describing(t).Gather()
	require.NoError(t, err)
	var names []string
	for _, d := range Descriptions() {
		names = append(names, d.Name)
		require.Regexp(t, `^ringnet_[a-z_]+$`, d.Name)
		require.Equal(t, d.Counter, strings.HasSuffix(d.Name, "_total"), d.Name)
	}
	require.Len(t, families, len(names), "each has a name of its own")
	for _, f := range families {
		require.Contains(t, names, f.GetName())
	}
}
