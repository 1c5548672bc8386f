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

// A column of the tables of workloads.
type column struct {
	head  string
	brief bool // for documents, too
	value func(r *Report, x *perf.Result) string
}

var columns = []column{
	{"size", true, func(_ *Report, x *perf.Result) string {
		if x.Size == 0 {
			return perf.Unknown
		}
		return perf.Size(x.Size)
	}},
	{"conns", true, func(_ *Report, x *perf.Result) string { return strconv.Itoa(x.Conns) }},
	{"strangers", true, func(_ *Report, x *perf.Result) string { return strconv.Itoa(x.Busy) }},
	{"peer", true, func(r *Report, x *perf.Result) string { return r.PeerName(x.Peer) }},
	{"p50", false, func(_ *Report, x *perf.Result) string {
		return x.Median.P50.WithInterval(perf.Nanos(x.Median.P50.Median))
	}},
	{"p90", false, func(_ *Report, x *perf.Result) string { return perf.Nanos(x.Median.P90.Median) }},
	{"p99", true, func(_ *Report, x *perf.Result) string { return perf.Nanos(x.Median.P99.Median) }},
	against(p99),
	{"mean", false, func(_ *Report, x *perf.Result) string { return perf.Nanos(x.Median.Mean.Median) }},
	{"per second", true, func(_ *Report, x *perf.Result) string {
		return x.Median.PerSecond.WithInterval(perf.SI(x.Median.PerSecond.Median, ""))
	}},
	against((*perf.Sample).PerSecond),
	{"bytes/s", false, func(_ *Report, x *perf.Result) string { return perf.SI(x.Median.BytesPerSec.Median, "B") }},
	{"processor time", true, processorTime},
	against((*perf.Sample).CPUPerOp),
	{"strangers had", true, func(_ *Report, x *perf.Result) string { return numberOrUnknown(x.Median.Strangers.Median) }},
	against(func(s *perf.Sample) float64 { return s.Strangers }),
	{"lock wait each", false, func(_ *Report, x *perf.Result) string { return perf.SI(x.Median.LockWait.Median, "s") }},
	{"allocs", false, allocations},
}

// processorTime is that of an operation or, in streams, where none is timed, of 1e9 bytes.
func processorTime(_ *Report, x *perf.Result) string {
	if m := x.Median; m.Mean.Median == 0 {
		return perf.SI(m.CPUPerGB.Median, "s/GB")
	}
	return perf.SI(x.Median.CPUPerOp.Median, "s")
}

func allocations(_ *Report, x *perf.Result) string {
	allocs := perf.Unknown
	if slices.ContainsFunc(x.Rounds, func(s *perf.Sample) bool { return s != nil && s.Allocs != nil }) {
		allocs = perf.Number(x.Median.Allocs.Median)
	}
	if x.Median.Failed > 0 {
		allocs += fmt.Sprintf(" (%d failed)", x.Median.Failed)
	}
	return allocs
}

// numberOrUnknown is a number that is not known if it is 0.
func numberOrUnknown(x float64) string {
	if x == 0 {
		return perf.Unknown
	}
	return perf.Number(x)
}

// against is a metric by that of each of the yardsticks, in the same rounds.
func against(metric func(*perf.Sample) float64) column {
	return column{"×", true, func(r *Report, x *perf.Result) string {
		var ratios []string
		for _, key := range r.yardsticks() {
			at := x.Cell
			at.Peer = key
			ratio := perf.Unknown
			if other := r.Find(at); other != nil && key != x.Peer {
				ratio = numberOrUnknown(x.Beside(other, metric).Median)
			}
			ratios = append(ratios, ratio)
		}
		return strings.Join(ratios, " / ")
	}}
}

// yardsticks are the peers by which the others are measured.
func (r *Report) yardsticks() (keys []string) {
	for _, p := range r.Peers {
		if slices.Contains(both, p.Key) && p.Unavailable == "" {
			keys = append(keys, p.Key)
		}
	}
	return keys
}

// printWorkload prints a table of all that was measured with a workload, or, for documents,
// one of Markdown, with less.
func (r *Report) printWorkload(out io.Writer, k *workload, markdown bool) {
	yardsticks := r.yardsticks()
	var names, head []string
	for _, key := range yardsticks {
		names = append(names, r.PeerName(key))
	}
	shown := slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return markdown && !c.brief })
	for _, c := range shown {
		head = append(head, strings.Replace(c.head, "×", "× "+strings.Join(names, " / "), 1))
	}
	table := [][]string{head}
	for _, x := range r.Results {
		if x.Workload != k.Key || x.Median.Rounds == 0 || markdown && slices.Contains(yardsticks, x.Peer) {
			continue
		}
		var row []string
		for _, c := range shown {
			row = append(row, strings.TrimSpace(c.value(r, x)))
		}
		table = append(table, row)
	}
	if len(table) == 1 {
		return
	}
	fmt.Fprintf(out, "\n%s\n", k.Name)
	table = informative(table)
	if markdown {
		fmt.Fprintln(out)
		for _, row := range slices.Insert(table, 1, slices.Repeat([]string{"---"}, len(table[0]))) {
			fmt.Fprintln(out, "| "+strings.Join(row, " | ")+" |")
		}
		return
	}
	t := perf.NewTable(out)
	for _, row := range table {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	t.Flush()
}

// informative returns the table, which has a head, without the columns that say nothing.
func informative(table [][]string) [][]string {
	short := make([][]string, len(table))
	for i := range table[0] {
		if !slices.ContainsFunc(table[1:], func(row []string) bool { return strings.Trim(row[i], "0/ "+perf.Unknown) != "" }) {
			continue
		}
		for j, row := range table {
			short[j] = append(short[j], row[i])
		}
	}
	return short
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
