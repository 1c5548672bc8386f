package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// print writes the tables.
func (r *Report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s\n%s; load average %.2f before and %.2f after; median of %d rounds\n",
		r.Machine, r.Started.UTC().Format("2006-01-02 15:04 UTC"), r.Load[0], r.Load[1], r.Options.Rounds)
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

func (m Machine) String() string {
	s := fmt.Sprintf("%s, %d CPUs, %s, %s, %s", m.CPU, m.CPUs, byteSize(m.Memory), m.Kernel, m.Go)
	if m.Device != "" {
		s += ", RDMA device " + m.Device
	}
	return s
}

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

func (r *Report) printWorkload(out io.Writer, k *workload) {
	t := newTable(out)
	headed := false
	for _, x := range r.Results {
		if x.Workload != k.key || x.Median.Rounds == 0 {
			continue
		}
		if !headed {
			headed = true
			fmt.Fprintf(out, "\n%s\n", k.name)
			fmt.Fprintln(t, "size\tconns\tpeer\tp50\tp90\tp99\tmean\tper second\tbytes/s\tCPU s/GB\tCPU s/million\tlock wait s/million\tallocs")
		}
		size := "–"
		if x.Size > 0 {
			size = byteSize(x.Size)
		}
		m := x.Median
		allocs := "–"
		if slices.ContainsFunc(x.Rounds, func(s *Sample) bool { return s != nil && s.Allocs != nil }) {
			allocs = fmt.Sprintf("%.2f", m.Allocs)
		}
		if m.Failed > 0 {
			allocs += fmt.Sprintf(" (%d failed)", m.Failed)
		}
		rate := "–"
		if m.BytesPerSec > 0 {
			rate = count(m.BytesPerSec) + "B"
		}
		fmt.Fprintln(t, strings.Join([]string{size, strconv.Itoa(x.Conns), r.peerName(x.Peer),
			nanos(m.P50), nanos(m.P90), nanos(m.P99), nanos(m.Mean), count(m.PerSecond), rate, unlessZero(m.CPUPerGB), unlessZero(m.CPUPerMillion), unlessZero(m.LockWait), allocs}, "\t"))
	}
	t.Flush()
}

func (r *Report) printIdle(out io.Writer) {
	if len(r.Idle) == 0 {
		return
	}
	fmt.Fprintf(out, "\nconnections opened one after the other, a byte there and back on each, then idle: both processes\n")
	t := newTable(out)
	fmt.Fprintln(t, "conns\tpeer\topened in\tmemory\tprocessor time while idle\tqueue pairs\tcompletion queues")
	for _, x := range r.Idle {
		if x.Error != "" {
			fmt.Fprintf(t, "%d\t%s\t%s\n", x.Conns, r.peerName(x.Peer), x.Error)
			continue
		}
		fmt.Fprintf(t, "%d\t%s\t%.2f s\t%s\t%.2f %%\t%d\t%d\n", x.Conns, r.peerName(x.Peer), x.Seconds, byteSize(x.Memory),
			100*x.CPU, x.Objects.QueuePairs, x.Objects.CompletionQueues)
	}
	t.Flush()
	fmt.Fprintf(out, "\nwhat each of the two processes holds for one of them\n")
	t = newTable(out)
	fmt.Fprintln(t, "conns\tpeer\tside\tmemory\tanonymous\tGo heap+stacks\tpinned\tdescriptors\tgoroutines\tthreads")
	for _, x := range r.Idle {
		if x.Error != "" {
			continue
		}
		for _, side := range []struct {
			name string
			perConnection
		}{{"client", x.Client}, {"server", x.Server}} {
			fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t%.3f\n", x.Conns, r.peerName(x.Peer), side.name,
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
			libraryBytes, median(share), median(crossing))
	}
	fmt.Fprintf(out, "\nfigures: median of the rounds' ratios\n")
	t := newTable(out)
	fmt.Fprintln(t, "what\tagainst\ttarget\tmeasured\trounds\t")
	for _, f := range r.Figures {
		if f.outside() {
			continue
		}
		value, spread := digits(f.Value), ""
		if strings.HasPrefix(f.Verdict, notMeasured) {
			value = "–"
		}
		if len(f.Ratios) > 1 {
			spread = digits(slices.Min(f.Ratios)) + " to " + digits(slices.Max(f.Ratios))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", f.What, f.Against, f.Target, value, spread, f.Verdict)
	}
	t.Flush()
}

func byteSize(n int) string {
	units := []string{"B", "KiB", "MiB", "GiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return strconv.FormatFloat(f, 'g', 3, 64) + " " + units[i]
}

func kib(bytes float64) string { return fmt.Sprintf("%.1f KiB", bytes/1024) }

// count is a number in powers of a thousand.
func count(x float64) string {
	for _, u := range []struct {
		scale float64
		name  string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if x >= u.scale {
			return digits(x/u.scale) + " " + u.name
		}
	}
	return digits(x) + " "
}

func nanos(ns float64) string {
	if ns == 0 {
		return "–"
	}
	return digits(ns/1e3) + " µs"
}

func unlessZero(x float64) string {
	if x == 0 {
		return "–"
	}
	return digits(x)
}

// digits is x with three significant digits.
func digits(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x == 0 || x >= 1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

func number(s string) float64 {
	f, _ := strconv.ParseFloat(s, 64)
	return f
}

// progress says what is going on: in one line that changes on a terminal,
// elsewhere in a line for each cell.
type progress struct {
	out      *os.File
	terminal bool
	started  time.Time
}

func newProgress(out *os.File) *progress {
	info, err := out.Stat()
	return &progress{out, err == nil && info.Mode()&os.ModeCharDevice != 0, time.Now()}
}

const clearLine = "\r\x1b[K"

func (p *progress) measured(round, rounds, cell, cells int, c Cell, s *Sample) {
	done := float64(round*cells+cell+1) / float64(rounds*cells)
	elapsed := time.Since(p.started)
	left := time.Duration(float64(elapsed) * (1/done - 1)).Round(time.Second)
	p.line(fmt.Sprintf("%3.0f %% (%v left)  round %d of %d  %-44s %12s/s  %12sB/s  p50 %s", 100*done, left, round+1, rounds,
		c, count(s.rate()), count(s.bandwidth()), nanos(s.P50)), false)
}

func (c Cell) String() string {
	s := c.Workload
	if c.Size > 0 {
		s += " " + byteSize(c.Size)
	}
	return fmt.Sprintf("%s ×%d %s", s, c.Conns, c.Peer)
}

func (p *progress) failed(c Cell, err error) { p.note("%v: %v", c, err) }

func (p *progress) note(format string, args ...any) { p.line(fmt.Sprintf(format, args...), true) }

func (p *progress) line(s string, keep bool) {
	switch {
	case !p.terminal:
		fmt.Fprintln(p.out, s)
	case keep:
		fmt.Fprint(p.out, clearLine, s, "\n")
	default:
		fmt.Fprint(p.out, clearLine, s)
	}
}

func (p *progress) end() {
	if p.terminal {
		fmt.Fprint(p.out, clearLine)
	}
}
