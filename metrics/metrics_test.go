package metrics

import (
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// registry returns a registry with all collectors, which compares what they collect with
// what they describe.
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

// connect connects this process with itself over a network, at one of its addresses, and returns both
// ends. No link is left when the test has ended.
func connect(t *testing.T, network, host string) (dialed, accepted *ringnet.Conn) {
	t.Helper()
	t.Cleanup(func() {
		hang.Unless(t, func() bool {
			ringnet.CloseIdleLinks()
			return len(ringnet.Links()) == 0 && ringnet.Memory().Used == 0
		}, "links are left")
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

// requireCounted connects this process with itself over a network, and requires that what there is then is
// counted, and what has been when the connection has carried five bytes and one end was closed.
func requireCounted(t *testing.T, network, host string) {
	t.Helper()
	before := gather(t)
	rise := func(name string) float64 {
		return gather(t)[name+`{network="`+network+`"}`] - before[name+`{network="`+network+`"}`]
	}
	a, b := connect(t, network, host)
	require.Equal(t, 2.0, rise("ringnet_links"), "one at each end")
	require.Equal(t, 2.0, rise("ringnet_link_connections"))
	after, m := gather(t), ringnet.Memory()
	require.Positive(t, m.Used)
	for name, want := range map[string]float64{
		"ringnet_memory_used_bytes":         float64(m.Used),
		"ringnet_memory_limit_bytes":        float64(m.Limit),
		"ringnet_locked_memory_used_bytes":  float64(m.Locked),
		"ringnet_locked_memory_limit_bytes": number(reflect.ValueOf(m.LockedLimit)),
	} {
		require.Equal(t, want, after[name], name)
	}

	_, err := a.Write([]byte("there"))
	require.NoError(t, err)
	_, err = io.ReadFull(b, make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, a.Close())
	for name, want := range map[string]float64{
		"ringnet_dials_succeeded_total":    1,
		"ringnet_accepts_total":            1,
		"ringnet_connections_opened_total": 2,
		"ringnet_connections_closed_total": 1,
		"ringnet_sent_bytes_total":         5,
		"ringnet_received_bytes_total":     5,
		"ringnet_sent_messages_total":      1,
		"ringnet_received_messages_total":  1,
		"ringnet_links_made_total":         2,
		"ringnet_links":                    2, // one at each end
	} {
		require.Equal(t, want, rise(name), name)
	}
}

func TestLinksMemoryAndTotals(t *testing.T) { requireCounted(t, "shm", "127.0.0.1") }

func TestEachCounterIsEmitted(t *testing.T) {
	counts := func(codes ...ringnet.ReasonCode) map[ringnet.ReasonCode]uint64 {
		m := make(map[ringnet.ReasonCode]uint64)
		for i, code := range codes {
			m[code] = uint64(20 + i)
		}
		return m
	}
	totals := map[string]ringnet.NetworkTotals{
		"rdma": {
			Dialed:        1,
			DialsFailed:   counts("refused", "silent"),
			PassedOver:    counts("no-device"),
			ListenerStats: ringnet.ListenerStats{Accepted: 2, Failed: counts("locked-memory")},
			Opened:        3, Closed: 4,
			BytesSent: 5, BytesReceived: 6,
			MessagesSent: 7, MessagesReceived: 8,
			LinksMade:  9,
			LinksMoved: 10, LinksLost: counts("unreachable"),
		},
		"tcp":  {ListenerStats: ringnet.ListenerStats{FellBack: 10}},
		"auto": {DialsFailed: counts("unreachable")},
	}
	requireAllCounted(t, totals)
	got := make(emitted)
	emitTotals(got.emit, totals)
	emitLinks(got.emit, []ringnet.LinkInfo{{Network: "rdma", Connections: 3}, {Network: "rdma", Seeking: true}, {Network: "shm", Connections: 1}})
	for name, value := range got {
		if value == 0 {
			delete(got, name) // nothing has happened that these count
		}
	}
	require.Equal(t, emitted{
		"ringnet_links rdma":                                 2,
		"ringnet_links_seeking rdma":                         1,
		"ringnet_link_connections rdma":                      3,
		"ringnet_links shm":                                  1,
		"ringnet_link_connections shm":                       1,
		"ringnet_dials_succeeded_total rdma":                 1,
		"ringnet_dials_failed_total rdma refused":            20,
		"ringnet_dials_failed_total rdma silent":             21,
		"ringnet_dials_failed_total auto unreachable":        20,
		"ringnet_dials_passed_over_total rdma no-device":     20,
		"ringnet_accepts_total rdma":                         2,
		"ringnet_accepts_fell_back_total":                    10,
		"ringnet_handshakes_failed_total rdma locked-memory": 20,
		"ringnet_connections_opened_total rdma":              3,
		"ringnet_connections_closed_total rdma":              4,
		"ringnet_sent_bytes_total rdma":                      5,
		"ringnet_received_bytes_total rdma":                  6,
		"ringnet_sent_messages_total rdma":                   7,
		"ringnet_received_messages_total rdma":               8,
		"ringnet_links_made_total rdma":                      9,
		"ringnet_links_moved_total rdma":                     10,
		"ringnet_links_lost_total rdma unreachable":          20,
	}, got)
}

// requireAllCounted wants each field to have a value in at least one of the totals.
func requireAllCounted(t *testing.T, totals map[string]ringnet.NetworkTotals) {
	t.Helper()
	counted := make(map[string]bool)
	var visit func(name string, v reflect.Value)
	visit = func(name string, v reflect.Value) {
		if v.Kind() != reflect.Struct {
			counted[name] = counted[name] || !v.IsZero()
			return
		}
		for i := range v.NumField() {
			visit(name+"."+v.Type().Field(i).Name, v.Field(i))
		}
	}
	for _, n := range totals {
		visit("NetworkTotals", reflect.ValueOf(n))
	}
	for name, yes := range counted {
		require.True(t, yes, "this test has no value of %s, and not what is emitted for it", name)
	}
}
