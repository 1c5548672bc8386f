package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ringnet/ringnet/internal/perf"
)

// printTable prints the medians of the rounds in Markdown: a row for each workload, with its size
// and number of connections, and then the same of processor time.
func printTable(out io.Writer, r *perf.Report) {
	fmt.Fprintf(out, "%v. Median of %d rounds of %v.\n\n", r.Machine, r.Rounds, r.Slice)
	printRows(out, r, "what", (*workload).speed, "ringnet to verbs", "BusyPoll an hour to verbs", "TCP to ringnet")
	fmt.Fprintln(out)
	printRows(out, r, "processor time of both ends", (*workload).processorTime)
}

// speed is the time of an operation or, of streams, their rate.
func (w *workload) speed(s perf.Summary) (float64, string) {
	if w.rate {
		return s.BytesPerSec.Median, perf.SI(s.BytesPerSec.Median, "B/s")
	}
	return s.P50.Median, perf.Nanos(s.P50.Median)
}

// processorTime is that of an operation or, of streams, of a GiB.
func (w *workload) processorTime(s perf.Summary) (float64, string) {
	if w.rate {
		perGiB := s.CPUPerGB.Median * (1 << 30) / 1e9
		return perGiB, perf.SI(perGiB, "s/GiB")
	}
	return s.CPUPerOp.Median, perf.SI(s.CPUPerOp.Median, "s")
}

// printRows prints a table of a value, with columns of ratios or none.
func printRows(out io.Writer, r *perf.Report, title string, value func(*workload, perf.Summary) (float64, string), ratios ...string) {
	columns := []string{title}
	for _, p := range peers {
		columns = append(columns, p.Name)
	}
	columns = append(columns, ratios...)
	fmt.Fprintf(out, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, c := range rowsOf(r) {
		w, err := findWorkload(c.Workload)
		if err != nil {
			continue
		}
		columns, values := []string{w.row(c)}, make(map[string]float64)
		for _, p := range peers {
			text := perf.Unknown
			c.Peer = p.Key
			if x := r.Find(c); x != nil {
				values[p.Key], text = value(w, x.Median)
			}
			columns = append(columns, text)
		}
		if ratios != nil {
			columns = append(columns, w.ratio(values[rdma], values[raw]), w.ratio(values[busy], values[raw]), w.ratio(values[tcp], values[rdma]))
		}
		fmt.Fprintf(out, "| %s |\n", strings.Join(columns, " | "))
	}
}

// ratio is that of the times of two peers.
func (w *workload) ratio(a, b float64) string {
	if a == 0 || b == 0 {
		return perf.Unknown
	}
	if w.rate {
		a, b = b, a
	}
	return perf.Number(a/b) + " ×"
}

// rowsOf are the cells of the report, without their peers.
func rowsOf(r *perf.Report) (rows []perf.Cell) {
	for _, x := range r.Results {
		c := x.Cell
		if c.Peer = ""; !slices.Contains(rows, c) {
			rows = append(rows, c)
		}
	}
	return rows
}

// row names a row.
func (w *workload) row(c perf.Cell) string {
	name := w.name
	if len(w.sizes) > 1 {
		name += ", " + perf.Size(c.Size)
	}
	if len(w.conns) > 1 {
		name += fmt.Sprintf(", connections: %d", c.Conns)
	}
	return name
}
