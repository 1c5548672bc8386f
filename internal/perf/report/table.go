package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Table has rows of columns. The first row is the head.
type Table [][]string

// Row adds a row.
func (t *Table) Row(columns ...string) { *t = append(*t, columns) }

// Text writes the table in aligned columns.
func (t Table) Text(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range t {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
}

// Markdown writes a table that has more than a head.
func (t Table) Markdown(out io.Writer) {
	if len(t) < 2 {
		return
	}
	fmt.Fprintln(out)
	for i, row := range t {
		cells := make([]string, len(row))
		for j, cell := range row {
			cells[j] = strings.ReplaceAll(strings.Join(strings.Fields(cell), " "), "|", `\|`)
		}
		fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			fmt.Fprintf(out, "|%s\n", strings.Repeat("---|", len(row)))
		}
	}
}

// Column is what a table says of each result.
type Column struct {
	Head  string
	Value func(*Result) string
}

// Columns that tables of different programs have.
var (
	Median = Column{"median", func(x *Result) string {
		if x.Median.P50.Median == 0 && x.Median.Mean.Median > 0 {
			return Nanos(x.Median.Mean.Median) + " (mean)" // all that some programs know
		}
		return x.Median.P50.Text(Nanos)
	}}
	P90       = Column{"p90", func(x *Result) string { return Nanos(x.Median.P90.Median) }}
	P99       = Column{"p99", func(x *Result) string { return Nanos(x.Median.P99.Median) }}
	P999      = Column{"p99.9", func(x *Result) string { return Nanos(x.Median.P999.Median) }}
	PerSecond = Column{"operations", func(x *Result) string { return x.Median.PerSecond.Text(Rate("")) }}
	Bytes     = Column{"rate", func(x *Result) string { return x.Median.BytesPerSec.Text(Rate("B")) }}

	// Processor time is that of an operation or, in streams, where none is timed, of 1e9 bytes.
	CPU       = processorTime("processor time", func(m *Summary) (operation, gigabyte Estimate) { return m.CPUPerOp, m.CPUPerGB })
	ClientCPU = processorTime("CPU, client", func(m *Summary) (operation, gigabyte Estimate) { return m.ClientCPUPerOp, m.ClientCPUPerGB })
	ServerCPU = processorTime("CPU, server", func(m *Summary) (operation, gigabyte Estimate) { return m.ServerCPUPerOp, m.ServerCPUPerGB })
)

func processorTime(head string, of func(*Summary) (operation, gigabyte Estimate)) Column {
	return Column{head, func(x *Result) string {
		operation, gigabyte := of(&x.Median)
		if x.Median.Mean.Median == 0 && x.Median.P50.Median == 0 {
			return SI(gigabyte.Median, "s/GB")
		}
		return Seconds(operation.Median)
	}}
}

// Table has a row for each cell of a workload that was measured: first which it is, and then more
// columns. Those that say nothing of any cell are left out.
func (r *Report) Table(workload string, more ...Column) Table {
	results := slices.DeleteFunc(slices.Clone(r.Results), func(x *Result) bool { return x.Workload != workload || x.Median.Rounds == 0 })
	t := make(Table, 1+len(results))
	for _, c := range append([]Column{
		{"size", func(x *Result) string { return ExactSize(x.Size) }},
		{"connections", func(x *Result) string { return strconv.Itoa(x.Conns) }},
		{"strangers", func(x *Result) string { return strconv.Itoa(x.Busy) }},
		{"over", func(x *Result) string { return r.PeerName(x.Peer) }},
	}, more...) {
		column, says := []string{c.Head}, false
		for _, x := range results {
			value := c.Value(x)
			column, says = append(column, value), says || strings.Trim(value, "0 B/"+Unknown) != ""
		}
		for i := range t {
			if says {
				t[i] = append(t[i], column[i])
			}
		}
	}
	return t
}

// PrintHead says when all was measured and how often, and what was not.
func (r *Report) PrintHead(w io.Writer) {
	fmt.Fprintf(w, "%s; load average %.2f before and %.2f after\n", r.Started.UTC().Format("2006-01-02 15:04 UTC"), r.Load[0], r.Load[1])
	fmt.Fprintf(w, "medians of %d rounds of %v each", r.Rounds, r.Slice)
	if r.Rounds >= ForInterval {
		fmt.Fprint(w, ", and the interval of 95 % confidence for the median, from order statistics: whatever the distribution is")
	}
	fmt.Fprintln(w)
	for _, p := range r.Peers {
		if p.Unavailable != "" {
			fmt.Fprintf(w, "not over %s: %s\n", p.Name, p.Unavailable)
		}
	}
	for _, x := range r.Results {
		if x.Error != "" {
			fmt.Fprintf(w, "%v: failed in %d of %d rounds: %s\n", x.Cell, r.Rounds-x.Median.Rounds, r.Rounds, x.Error)
		}
	}
}
