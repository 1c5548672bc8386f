package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/ringnet/ringnet/internal/perf"
)

// print writes the tables: all, or those of Markdown for documents.
func (r *Report) print(w io.Writer, markdown bool) {
	fmt.Fprintf(w, "\n%s\n%s; load average %.2f before and %.2f after; median of %d rounds\n",
		r.Machine, r.Started.UTC().Format("2006-01-02 15:04 UTC"), r.Load[0], r.Load[1], r.Rounds)
	for _, p := range r.Peers {
		if p.Unavailable != "" {
			fmt.Fprintf(w, "not measured: %s: %s\n", p.Name, p.Unavailable)
		}
	}
	for _, k := range workloads {
		r.printWorkload(w, k, markdown)
	}
	if markdown {
		return
	}
	r.printIdle(w)
	r.printFigures(w)
}

// columns are those of the tables of workloads, after what identifies a row. Those with a
// metric are for documents, too, each with a column that compares the peers.
var columns = []struct {
	head   string
	value  func(m *perf.Summary) string
	metric func(*perf.Sample) float64
}{
	{"p50", func(m *perf.Summary) string { return m.P50.WithInterval(perf.Nanos(m.P50.Median)) }, nil},
	{"p90", func(m *perf.Summary) string { return perf.Nanos(m.P90.Median) }, nil},
	{"p99", func(m *perf.Summary) string { return perf.Nanos(m.P99.Median) }, p99},
	{"mean", func(m *perf.Summary) string { return perf.Nanos(m.Mean.Median) }, nil},
	{"per second", func(m *perf.Summary) string { return m.PerSecond.WithInterval(perf.SI(m.PerSecond.Median, "")) }, (*perf.Sample).PerSecond},
	{"bytes/s", func(m *perf.Summary) string { return perf.SI(m.BytesPerSec.Median, "B") }, nil},
	{"processor time", processorTime, (*perf.Sample).CPUPerOp},
	{"strangers had", func(m *perf.Summary) string { return perf.Number(m.Strangers.Median) }, func(s *perf.Sample) float64 { return s.Strangers }},
	{"lock wait each", func(m *perf.Summary) string { return perf.SI(m.LockWait.Median, "s") }, nil},
	{"allocs", func(m *perf.Summary) string { return perf.Number(m.Allocs.Median) }, nil},
	{"failed", func(m *perf.Summary) string { return strconv.Itoa(m.Failed) }, nil},
}

// processorTime is that of an operation or, in streams, where none is timed, of 1e9 bytes.
func processorTime(m *perf.Summary) string {
	if m.Mean.Median == 0 {
		return perf.SI(m.CPUPerGB.Median, "s/GB")
	}
	return perf.SI(m.CPUPerOp.Median, "s")
}

// yardsticks are the peers with which others are compared: the pipe in memory, if there is one.
func (r *Report) yardsticks() (found []perf.Peer) {
	for _, p := range r.Peers {
		switch {
		case p.Unavailable != "":
		case p.Key == "pipe":
			return []perf.Peer{p}
		case slices.Contains(both, p.Key):
			found = append(found, p)
		}
	}
	return found
}

// besideYardsticks is a metric by that of each yardstick, in the same rounds.
func (r *Report) besideYardsticks(x *perf.Result, metric func(*perf.Sample) float64) string {
	var ratios []string
	for _, p := range r.yardsticks() {
		at := x.Cell
		at.Peer = p.Key
		ratio := perf.Unknown
		if other := r.Find(at); other != nil && other != x {
			if median := x.Beside(other, metric).Median; median > 0 {
				ratio = perf.Number(median)
			}
		}
		ratios = append(ratios, ratio)
	}
	return strings.Join(ratios, " / ")
}

// printWorkload prints a table of all that was measured with a workload, or, for documents,
// one of Markdown, with less. Columns that say nothing are left out.
func (r *Report) printWorkload(out io.Writer, k *workload, markdown bool) {
	var names []string
	for _, p := range r.yardsticks() {
		names = append(names, p.Name)
	}
	var results []*perf.Result
	for _, x := range r.Results {
		if x.Workload == k.Key && x.Median.Rounds > 0 && !(markdown && slices.Contains(names, r.PeerName(x.Peer))) {
			results = append(results, x)
		}
	}
	if len(results) == 0 {
		return
	}
	rows := make([][]string, 1+len(results))
	add := func(head string, value func(x *perf.Result) string) {
		column, says := []string{head}, false
		for _, x := range results {
			v := strings.TrimSpace(value(x))
			column, says = append(column, v), says || strings.Trim(v, "0 B/"+perf.Unknown) != ""
		}
		for i := range rows {
			if says {
				rows[i] = append(rows[i], column[i])
			}
		}
	}
	add("size", func(x *perf.Result) string { return perf.Size(x.Size) })
	add("conns", func(x *perf.Result) string { return strconv.Itoa(x.Conns) })
	add("strangers", func(x *perf.Result) string { return strconv.Itoa(x.Busy) })
	add("peer", func(x *perf.Result) string { return r.PeerName(x.Peer) })
	for _, c := range columns {
		if c.metric != nil || !markdown {
			add(c.head, func(x *perf.Result) string { return c.value(&x.Median) })
		}
		if c.metric != nil {
			add("× "+strings.Join(names, " / "), func(x *perf.Result) string { return r.besideYardsticks(x, c.metric) })
		}
	}
	fmt.Fprintf(out, "\n%s\n", k.Name)
	write(out, rows, markdown)
}

// write writes a table, whose first row is its head.
func write(out io.Writer, rows [][]string, markdown bool) {
	if markdown {
		fmt.Fprintln(out)
		for _, row := range slices.Insert(rows, 1, slices.Repeat([]string{"---"}, len(rows[0]))) {
			fmt.Fprintln(out, "| "+strings.Join(row, " | ")+" |")
		}
		return
	}
	t := perf.NewTable(out)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	t.Flush()
}

func (r *Report) printIdle(out io.Writer) {
	if len(r.Idle) == 0 {
		return
	}
	fmt.Fprintf(out, "\nconnections opened one after the other, a byte there and back on each, then idle: both processes\n")
	t := perf.NewTable(out)
	fmt.Fprintln(t, "conns\tpeer\topened in\tmemory\tprocessor time while idle\tqueue pairs\tcompletion queues")
	for _, x := range r.Idle {
		if x.Error != "" {
			fmt.Fprintf(t, "%d\t%s\t%s\n", x.Conns, r.PeerName(x.Peer), x.Error)
			continue
		}
		fmt.Fprintf(t, "%d\t%s\t%.2f s\t%s\t%.2f %%\t%d\t%d\n", x.Conns, r.PeerName(x.Peer), x.Seconds, perf.Size(x.Memory),
			100*x.CPU, x.Objects.QueuePairs, x.Objects.CompletionQueues)
	}
	t.Flush()
	fmt.Fprintf(out, "\nwhat each of the two processes holds for one of them\n")
	t = perf.NewTable(out)
	fmt.Fprintln(t, "conns\tpeer\tside\tmemory\tanonymous\tGo heap+stacks\tpinned\tdescriptors\tgoroutines\tthreads")
	for _, x := range r.Idle {
		if x.Error != "" {
			continue
		}
		for _, side := range []struct {
			name string
			perConnection
		}{{"client", x.Client}, {"server", x.Server}} {
			fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t%.3f\n", x.Conns, r.PeerName(x.Peer), side.name,
				kib(side.Memory), kib(side.Anonymous), kib(side.Go), kib(side.Pinned),
				side.Descriptors, side.Goroutines, side.Threads)
		}
	}
	t.Flush()
}

func (r *Report) printFigures(out io.Writer) {
	if l := r.Library; l != nil && len(l.Rounds) > 0 {
		var share, crossing []float64
		for _, x := range l.Rounds {
			share, crossing = append(share, x.WriteRead), append(crossing, x.CgoCrossing)
		}
		fmt.Fprintf(out, "\nWrite + Read of %d B over a fabric that costs nothing: %.0f ns; a bare cgo crossing: %.1f ns\n",
			libraryBytes, perf.NewEstimate(share).Median, perf.NewEstimate(crossing).Median)
	}
	fmt.Fprintf(out, "\nfigures: median of the rounds' ratios\n")
	t := perf.NewTable(out)
	fmt.Fprintln(t, "what\tagainst\ttarget\tmeasured\trounds\t")
	for _, f := range r.Figures {
		if f.outside() {
			continue
		}
		value, spread := perf.NewEstimate(f.Ratios).WithInterval(perf.Number(f.Value)), ""
		if strings.HasPrefix(f.Verdict, notMeasured) {
			value = "–"
		}
		if len(f.Ratios) > 1 {
			spread = perf.Number(slices.Min(f.Ratios)) + " to " + perf.Number(slices.Max(f.Ratios))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", f.What, f.Against, f.Target, value, spread, f.Verdict)
	}
	t.Flush()
}

func kib(bytes float64) string { return fmt.Sprintf("%.1f KiB", bytes/1024) }
