package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/metrics"
)

// The test of metrics/dashboard.json is in this module because it needs Prometheus's
// parser, which must not be a dependency of a library.

type dashboard struct {
	Templating struct {
		List []struct {
			Name       string
			Definition string
		}
	}
	Panels []struct {
		Title   string
		Targets []struct {
			Expr         string
			LegendFormat string
		}
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("../../metrics/dashboard.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

// exported returns all metrics by name.
func exported() map[string]metrics.Description {
	all := make(map[string]metrics.Description)
	for _, d := range metrics.Descriptions() {
		all[d.Name] = d
	}
	return all
}

// targetLabels are those that Prometheus adds.
var targetLabels = []string{"job", "instance"}

// parse parses a query after it has put in values for variables, as Grafana does.
func parse(t *testing.T, d dashboard, query string) parser.Expr {
	t.Helper()
	query = strings.ReplaceAll(query, "$__rate_interval", "5m")
	for _, v := range d.Templating.List {
		query = strings.ReplaceAll(query, "$"+v.Name, ".*")
	}
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	require.NoError(t, err)
	return expr
}

// labelsOf returns the labels that an expression has, and requires that each metric and
// label in it exists.
func labelsOf(t *testing.T, e parser.Node, used map[string]bool) []string {
	t.Helper()
	switch e := e.(type) {
	case *parser.VectorSelector:
		d, ok := exported()[e.Name]
		require.True(t, ok, "no metric is called %s", e.Name)
		used[e.Name] = true
		labels := append(d.Labels, targetLabels...)
		for _, m := range e.LabelMatchers {
			if m.Name != "__name__" {
				require.Contains(t, labels, m.Name, e.Name)
			}
		}
		return labels
	case *parser.AggregateExpr:
		require.False(t, e.Without)
		require.Subset(t, append(labelsOf(t, e.Expr, used), ""), append(e.Grouping, ""))
		return e.Grouping
	case *parser.Call:
		name := e.Args[0].(*parser.MatrixSelector).VectorSelector.(*parser.VectorSelector).Name
		require.True(t, exported()[name].Counter, "the %s of %s, which is not a counter", e.Func.Name, name)
	case *parser.BinaryExpr:
		left, right := labelsOf(t, e.LHS, used), labelsOf(t, e.RHS, used)
		if left != nil && right != nil {
			require.ElementsMatch(t, left, right, "no sample would match: %s", e)
		}
		return append(left, right...)
	case *parser.NumberLiteral:
		return nil
	}
	var labels []string
	for child := range parser.ChildrenIter(e) {
		labels = append(labels, labelsOf(t, child, used)...)
	}
	return labels
}

func TestDashboardQueriesMetricsThatExist(t *testing.T) {
	d := readDashboard(t)
	used := make(map[string]bool)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			t.Run(p.Title, func(t *testing.T) {
				labels := labelsOf(t, parse(t, d, target.Expr), used)
				for _, name := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
					require.Contains(t, labels, name[1], "the legend")
				}
			})
		}
	}
	for name := range exported() {
		require.Contains(t, used, name, "no panel shows it")
	}
}

func TestAlertsInTheDocumentAreOfMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	alerts := regexp.MustCompile("(?m)^\\| `([^`]+[>=] [0-9.]+)` \\|").FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, alerts)
	for _, alert := range alerts {
		labelsOf(t, parse(t, dashboard{}, alert[1]), make(map[string]bool))
	}
}

func TestDashboardVariablesAreOfMetricsThatExist(t *testing.T) {
	d := readDashboard(t)
	queries := 0
	for _, v := range d.Templating.List {
		if v.Definition == "" {
			continue
		}
		queries++
		query := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition)
		require.NotNil(t, query, v.Definition)
		require.Contains(t, labelsOf(t, parse(t, d, query[1]), make(map[string]bool)), query[2])
	}
	require.Equal(t, len(targetLabels), queries)
}
