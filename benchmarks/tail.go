package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/ringnet/ringnet/internal/perf/report"
)

// tail is the table of -tail. Each of ringnet's peers has a row in it for each cell, with other
// versions of it below, beside the yardsticks.
func (r *Report) tail() report.Table {
	var others []report.Peer
	var names []string
	for _, info := range r.Peers {
		if p, err := findPeer(info.Key); err == nil && p.yardstick {
			others, names = append(others, info), append(names, info.Name)
		}
	}
	all := ": itself / " + strings.Join(names, " / ")
	better := ", × the better of " + strings.Join(names, " and ")
	t := report.Table{{"what", "strangers", "over", "rate" + better, "p99" + better, "p99 in ms" + all, "p99.9 in ms" + all, "processor time" + all}}
	for _, x := range r.tailRows() {
		beside := func(value func(*report.Summary) string) string {
			values := []string{value(&x.Median)}
			for _, other := range others {
				text := report.Unknown
				if y := r.At(x, other.Key); y != nil {
					text = value(&y.Median)
				}
				values = append(values, text)
			}
			return strings.Join(values, " / ")
		}
		t.Row(rowName(x.Cell), strconv.Itoa(x.Busy), r.PeerName(x.Peer),
			r.worst(x, others, (*report.Sample).PerSecond, func(a, b float64) bool { return a < b }),
			r.worst(x, others, p99, func(a, b float64) bool { return a > b }),
			beside(func(m *report.Summary) string { return millis(m.P99) }),
			beside(func(m *report.Summary) string { return millis(m.P999) }),
			beside(func(m *report.Summary) string { return report.Seconds(m.CPUPerOp.Median) }))
	}
	return t
}

// rowName says what is measured, but for the peer and the strangers.
func rowName(c report.Cell) string {
	c.Peer, c.Busy = "", 0
	return strings.TrimSpace(c.String())
}

// tailRows are the results of ringnet's peers, those of one workload, size and number of connections
// together, and each followed by those of other versions.
func (r *Report) tailRows() (rows []*report.Result) {
	var names []string
	for _, x := range r.Results {
		p, err := findPeer(x.Peer)
		if err != nil || p.ours == nil || p.as != "" {
			continue
		}
		names = append(names, rowName(x.Cell))
		rows = append(rows, x)
		for _, info := range r.Peers {
			if other, err := findPeer(info.Key); err == nil && other.as == p.key && r.At(x, info.Key) != nil {
				rows = append(rows, r.At(x, info.Key))
			}
		}
	}
	slices.SortStableFunc(rows, func(a, b *report.Result) int {
		return slices.Index(names, rowName(a.Cell)) - slices.Index(names, rowName(b.Cell))
	})
	return rows
}

// worst is the ratio of a metric to that of whichever of the others makes it the worst, and who that
// is: bold if that one is better.
func (r *Report) worst(x *report.Result, others []report.Peer, metric func(*report.Sample) float64, worse func(a, b float64) bool) string {
	var worst report.Estimate
	var name string
	for _, other := range others {
		y := r.At(x, other.Key)
		if y == nil {
			continue
		}
		if ratio := x.Beside(y, metric); ratio.Median > 0 && (worst.Median == 0 || worse(ratio.Median, worst.Median)) {
			worst, name = ratio, other.Name
		}
	}
	switch {
	case worst.Median == 0:
		return report.Unknown
	case worse(worst.Median, 1):
		return "**" + worst.Text(report.Number) + " " + name + "**"
	}
	return worst.Text(report.Number) + " " + name
}

func millis(e report.Estimate) string {
	if e.Median == 0 {
		return report.Unknown
	}
	return report.Number(e.Median / 1e6)
}
