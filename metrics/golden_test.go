package metrics

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

// Dashboards and alerts of users name metrics and labels: testdata/metrics.txt has each metric, its type, labels
// and help.
func TestMetricsAreThoseThatUsersKnow(t *testing.T) {
	var all []string
	for _, m := range slices.Concat(process, devices) {
		kind := map[prometheus.ValueType]string{prometheus.CounterValue: "counter", prometheus.GaugeValue: "gauge"}[m.kind]
		require.Contains(t, m.desc.String(), fmt.Sprintf("fqName: %q,", m.name))
		_, help, _ := strings.Cut(m.desc.String(), `help: "`)
		help, _, _ = strings.Cut(help, `"`)
		all = append(all, fmt.Sprintf("%s{%s} %s: %s\n", m.name, strings.Join(m.labels, ","), kind, help))
	}
	slices.Sort(all)
	want, err := os.ReadFile("testdata/metrics.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), strings.Join(all, ""))
}

// A field without tags would be counted and never shown.
func TestEachTotalHasAMetric(t *testing.T) {
	for of, made := range map[reflect.Type][]field{
		reflect.TypeFor[ringnet.NetworkTotals](): ofTotals,
		reflect.TypeFor[ringnet.MemoryInfo]():    ofMemory,
	} {
		for _, f := range reflect.VisibleFields(of) {
			has := slices.ContainsFunc(made, func(m field) bool { return slices.Equal(m.index, f.Index) })
			require.True(t, has || f.Anonymous, "%v.%s", of, f.Name)
		}
	}
}
