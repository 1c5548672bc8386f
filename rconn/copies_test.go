package rconn

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/link"
)

// What package link counts and is told has fields of its own, so a new field of this package
// has to be copied to them, or from them.

func TestStatsHaveEveryCounter(t *testing.T) {
	var s link.StreamStats
	fill(t, reflect.ValueOf(&s).Elem())
	got := statsOf(s)
	got.RTT = 1 // package ringnet's, over TCP
	requireFilled(t, got, "rconn.statsOf")
}

func TestLinkInfoHasEveryField(t *testing.T) {
	var i link.Info
	fill(t, reflect.ValueOf(&i).Elem())
	i.Network = "rdma"
	requireFilled(t, NewLinkInfo(i), "rconn.NewLinkInfo")
}

// fill makes no field of a struct zero.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	switch {
	case v.Type() == reflect.TypeFor[netip.AddrPort]():
		v.Set(reflect.ValueOf(netip.MustParseAddrPort("192.0.2.1:7")))
	case v.Type() == reflect.TypeFor[netip.Addr]():
		v.Set(reflect.ValueOf(netip.MustParseAddr("192.0.2.1")))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	case v.CanInt():
		v.SetInt(1)
	case v.CanUint():
		v.SetUint(1)
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.Kind() == reflect.String:
		v.SetString("x")
	default:
		require.Fail(t, "cannot fill a field", "%v", v.Type())
	}
}

func requireFilled(t *testing.T, s any, by string) {
	t.Helper()
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		require.False(t, v.Field(i).IsZero(), "%s does not copy %s", by, v.Type().Field(i).Name)
	}
}

func TestConfigReachesLinks(t *testing.T) {
	elsewhere := map[string]string{
		"Linger":       "a connection's",
		"TrafficClass": "the fabric's",
		"Links":        "of package ringnet's pool of links",
	}
	values := map[string]any{
		"RecvBuffer": 8 << 10, "SendBuffer": 8 << 10, "SendQueue": 64, "RecvQueue": 64,
		"BusyPoll": -time.Nanosecond, "KeepAlive": time.Minute, "HandshakeTimeout": time.Minute,
		"Dedicated": true, "ResumeTimeout": time.Minute, "NoStandby": true, "LinkIdle": time.Minute,
	}
	usual, err := new(Config).Link()
	require.NoError(t, err)
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if elsewhere[f.Name] != "" {
			continue
		}
		require.Contains(t, values, f.Name, "give it a value other than its default here, or say in elsewhere who uses it")
		var c Config
		reflect.ValueOf(&c).Elem().FieldByIndex(f.Index).Set(reflect.ValueOf(values[f.Name]))
		l, err := c.Link()
		require.NoError(t, err)
		require.NotEqual(t, usual, l, "rconn.Config.Link does not pass on %s", f.Name)
	}
}
