package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/ringnet/ringnet/internal/perf"
)

// print writes the tables.
func (r *Report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s\n%s; load average %.2f before and %.2f after; median of %d rounds\n",
		r.Machine, r.Started.UTC().Format("2006-01-02 15:04 UTC"), r.Load[0], r.Load[1], r.Rounds)
	for _, p := range r.Peers {
		if p.Unavailable != "" {
			fmt.Fprintf(w, "not measured: %s: %s\n", p.Name, p.Unavailable)
		}
	}
	for _, k := range workloads {
		r.printWorkload(w, k)
	}
	r.printIdle(w)
	r.printFigures(w)
}

func (r *Report) printWorkload(out io.Writer, k *workload) {
	t := perf.NewTable(out)
	headed := false
	for _, x := range r.Results {
		if x.Workload != k.Key || x.Median.Rounds == 0 {
			continue
		}
		if !headed {
			headed = true
			fmt.Fprintf(out, "\n%s\n", k.Name)
			fmt.Fprintln(t, "size\tconns\tpeer\tp50\tp90\tp99\tmean\tper second\tbytes/s\tCPU s/GB\tCPU each\tlock wait each\tallocs")
		}
		size := perf.Unknown
		if x.Size > 0 {
			size = perf.Size(x.Size)
		}
		m := x.Median
		allocs := perf.Unknown
		if slices.ContainsFunc(x.Rounds, func(s *perf.Sample) bool { return s != nil && s.Allocs != nil }) {
			allocs = perf.Number(m.Allocs.Median)
		}
		if m.Failed > 0 {
			allocs += fmt.Sprintf(" (%d failed)", m.Failed)
		}
		nanos := func(e perf.Estimate) string { return perf.Nanos(e.Median) }
		seconds := func(e perf.Estimate) string { return perf.SI(e.Median, "s") }
		fmt.Fprintln(t, strings.Join([]string{size, strconv.Itoa(x.Conns), r.PeerName(x.Peer),
			m.P50.WithInterval(nanos(m.P50)), nanos(m.P90), nanos(m.P99), nanos(m.Mean),
			m.PerSecond.WithInterval(perf.SI(m.PerSecond.Median, "")), perf.SI(m.BytesPerSec.Median, "B"),
			perf.Number(m.CPUPerGB.Median), seconds(m.CPUPerOp), seconds(m.LockWait), allocs}, "\t"))
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
