package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

var (
	selector = regexp.MustCompile(`(rate\()?\b(ringnet_\w+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)(?:=|!=|=~|!~)"`)
	grouping = regexp.MustCompile(`by \(([^)]*)\)`)
	legend   = regexp.MustCompile(`{{(\w+)}}`)
)

// requireQuery requires that the metrics in a query, and their labels there and in the legend, exist.
// It returns the names of the metrics.
func requireQuery(t *testing.T, query, legendFormat string) (names []string) {
	t.Helper()
	for _, s := range selector.FindAllStringSubmatch(query, -1) {
		all := slices.Concat(process, devices)
		i := slices.IndexFunc(all, func(m *metric) bool { return m.name == s[2] })
		require.GreaterOrEqual(t, i, 0, "no metric is called %s", s[2])
		require.True(t, all[i].kind == prometheus.CounterValue || s[1] == "", "the rate of %s, which is not a counter", s[2])
		labels := append([]string{"job", "instance"}, all[i].labels...) // the first two are Prometheus's
		for _, m := range matcher.FindAllStringSubmatch(s[3], -1) {
			require.Contains(t, labels, m[1], query)
		}
		for _, by := range grouping.FindAllStringSubmatch(query, -1) {
			require.Subset(t, labels, strings.Split(by[1], ", "), query)
		}
		for _, l := range legend.FindAllStringSubmatch(legendFormat, -1) {
			require.Contains(t, labels, l[1], query)
		}
		names = append(names, s[2])
	}
	require.NotEmpty(t, names, query)
	return names
}

func TestDashboardShowsAllMetrics(t *testing.T) {
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Templating struct{ List []struct{ Definition string } }
		Panels     []struct {
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	var shown []string
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			shown = append(shown, requireQuery(t, target.Expr, target.LegendFormat)...)
		}
	}
	for _, m := range slices.Concat(process, devices) {
		require.Contains(t, shown, m.name)
	}
	for _, v := range dashboard.Templating.List {
		if v.Definition != "" {
			requireQuery(t, v.Definition, "")
		}
	}
}
