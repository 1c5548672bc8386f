package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/ringnet/ringnet/internal/perf/report"
)

// print writes the tables: all, or those of Markdown for documents.
func (r *Report) print(w io.Writer, markdown bool) {
	fmt.Fprintf(w, "\n%s\n%s; load average %.2f before and %.2f after; medians of %d rounds\n",
		r.Machine, r.Started.UTC().Format("2006-01-02 15:04 UTC"), r.Load[0], r.Load[1], r.Rounds)
	for _, p := range r.Peers {
		if p.Unavailable != "" {
			fmt.Fprintf(w, "not measured: %s: %s\n", p.Name, p.Unavailable)
		}
	}
	for _, k := range benchmarks {
		r.printWorkload(w, k, markdown)
	}
	if !markdown {
		r.printIdle(w)
	}
}

// columns are those of the tables of workloads, after what identifies a row. Those with a
// metric are for documents, too, each with a column that compares the peers.
var columns = []struct {
	head   string
	value  func(m *report.Summary) string
	metric func(*report.Sample) float64
}{
	{"p50", func(m *report.Summary) string { return m.P50.Text(report.Nanos) }, nil},
	{"p90", func(m *report.Summary) string { return report.Nanos(m.P90.Median) }, nil},
	{"p99", func(m *report.Summary) string { return report.Nanos(m.P99.Median) }, p99},
	{"mean", func(m *report.Summary) string { return report.Nanos(m.Mean.Median) }, nil},
	{"per second", func(m *report.Summary) string { return m.PerSecond.Text(perSecond) }, (*report.Sample).PerSecond},
	{"bytes/s", func(m *report.Summary) string { return report.SI(m.BytesPerSec.Median, "B") }, nil},
	{"processor time", processorTime, (*report.Sample).CPUPerOp},
	{"strangers had", func(m *report.Summary) string { return report.Number(m.Strangers.Median) }, func(s *report.Sample) float64 { return s.Strangers }},
	{"lock wait each", func(m *report.Summary) string { return report.Seconds(m.LockWait.Median) }, nil},
	{"allocs", func(m *report.Summary) string { return report.Number(m.Allocs.Median) }, nil},
	{"failed", func(m *report.Summary) string { return strconv.Itoa(m.Failed) }, nil},
}

func perSecond(x float64) string   { return report.SI(x, "") }
func p50(s *report.Sample) float64 { return s.P50 }
func p99(s *report.Sample) float64 { return s.P99 }

// processorTime is that of an operation or, in streams, where none is timed, of 1e9 bytes.
func processorTime(m *report.Summary) string {
	if m.Mean.Median == 0 && m.P50.Median == 0 {
		return report.SI(m.CPUPerGB.Median, "s/GB")
	}
	return report.Seconds(m.CPUPerOp.Median)
}

// The peers with which others are compared. A pipe in memory is compared with alone.
var yardstickPeers = []string{"tcp", "unix", "ib_send", "ib_write", "rsockets"}

// yardsticks are what a workload's rows are compared with: peers, by their keys, and other versions of
// the row's own peer, which are what follows its key.
func (r *Report) yardsticks(workload string) (found []string) {
	for _, p := range r.Peers {
		key := p.Key
		if _, version, beside := strings.Cut(p.Key, besideMark); beside {
			key = besideMark + version
		}
		switch {
		case !slices.ContainsFunc(r.Results, func(x *report.Result) bool { return x.Peer == p.Key && x.Workload == workload && x.Median.Rounds > 0 }):
		case key == "pipe":
			return []string{key}
		case slices.Contains(found, key):
		case key != p.Key || slices.Contains(yardstickPeers, key):
			found = append(found, key)
		}
	}
	return found
}

// printWorkload prints a table of all that was measured with a workload, or, for documents,
// one of Markdown, with less.
func (r *Report) printWorkload(out io.Writer, k *benchmark, markdown bool) {
	yardsticks := r.yardsticks(k.Key)
	var names []string
	for _, key := range yardsticks {
		names = append(names, strings.TrimPrefix(r.PeerName(key), besideMark))
	}
	var results []*report.Result
	for _, x := range r.Results {
		if x.Workload == k.Key && x.Median.Rounds > 0 && !(markdown && slices.Contains(yardsticks, x.Peer)) {
			results = append(results, x)
		}
	}
	if len(results) == 0 {
		return
	}
	all := []report.Column{
		{Head: "size", Value: func(x *report.Result) string { return report.Size(x.Size) }},
		{Head: "conns", Value: func(x *report.Result) string { return strconv.Itoa(x.Conns) }},
		{Head: "strangers", Value: func(x *report.Result) string { return strconv.Itoa(x.Busy) }},
		{Head: "peer", Value: func(x *report.Result) string { return r.PeerName(x.Peer) }},
	}
	for _, c := range columns {
		if c.metric != nil || !markdown {
			all = append(all, report.Column{Head: c.head, Value: func(x *report.Result) string { return c.value(&x.Median) }})
		}
		if c.metric == nil {
			continue
		}
		all = append(all, report.Column{Head: "× " + strings.Join(names, " / "), Value: func(x *report.Result) string {
			var ratios []string
			for _, key := range yardsticks {
				if strings.HasPrefix(key, besideMark) {
					key = x.Peer + key
				}
				ratios = append(ratios, r.ratio(x, key, c.metric, markdown))
			}
			return strings.Join(ratios, " / ")
		}})
	}
	fmt.Fprintf(out, "\n%s\n", k.Name)
	t := report.NewTable(results, all)
	if markdown {
		t.Markdown(out)
	} else {
		t.Text(out)
	}
}

// ratio is a metric by that of another peer, in the same rounds.
func (r *Report) ratio(x *report.Result, peer string, metric func(*report.Sample) float64, medianAlone bool) string {
	other := r.At(x, peer)
	if other == nil || other == x {
		return report.Unknown
	}
	ratio := x.Beside(other, metric)
	switch {
	case ratio.Median <= 0:
		return report.Unknown
	case medianAlone:
		return report.Number(ratio.Median)
	}
	return ratio.Text(report.Number)
}

func (r *Report) printIdle(out io.Writer) {
	if len(r.Idle) == 0 {
		return
	}
	t := report.Table{{"conns", "peer", "opened in", "processor time while idle", "memory", "of each, client", "server"}}
	for _, x := range r.Idle {
		if x.Error != "" {
			t.Row(strconv.Itoa(x.Conns), r.PeerName(x.Peer), x.Error)
			continue
		}
		t.Row(strconv.Itoa(x.Conns), r.PeerName(x.Peer), fmt.Sprintf("%.2f s", x.Seconds), fmt.Sprintf("%.2f %%", 100*x.CPU), report.Size(int(x.Memory)),
			fmt.Sprintf("%.1f KiB", x.Client/1024), fmt.Sprintf("%.1f KiB", x.Server/1024))
	}
	fmt.Fprintf(out, "\nconnections opened one after the other, a byte there and back on each, then idle\n")
	t.Text(out)
}
