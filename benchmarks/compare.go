package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/ringnet/ringnet/internal/perf"
)

// compared are the metrics by which reports are compared, and how each is shown.
var compared = []struct {
	name   string
	metric func(*perf.Sample) float64
	show   func(float64) string
}{
	{"operations per second", (*perf.Sample).PerSecond, func(x float64) string { return perf.SI(x, "") }},
	{"median time of an operation", p50, perf.Nanos},
	{"processor time of an operation, both sides", (*perf.Sample).CPUPerOp, func(x float64) string { return perf.SI(x, "s") }},
}

// compare prints what differs between two results.json, OLD,NEW, in the cells that both
// have. They were not measured in the same rounds, so that the machine has its part in what
// differs: how large, TCP shows.
func compare(out io.Writer, files string) error {
	older, newer, ok := strings.Cut(files, ",")
	if !ok {
		return fmt.Errorf("-compare wants two files, OLD,NEW, not %q", files)
	}
	var reports [2]*Report
	for i, path := range []string{older, newer} {
		r, err := readReport(path)
		if err != nil {
			return err
		}
		reports[i] = r
		fmt.Fprintf(out, "%s: ringnet %s, %s, %d rounds of %v\n  %s\n", path, r.Commit, r.Started.UTC().Format("2006-01-02 15:04 UTC"), r.Rounds, r.Slice, r.Machine)
		if r.Note != "" {
			fmt.Fprintf(out, "  %s\n", r.Note)
		}
	}
	for _, c := range compared {
		var rows []string
		for _, x := range reports[0].Results {
			before, after := known(x, c.metric), known(reports[1].Find(x.Cell), c.metric)
			if len(before) == 0 || len(after) == 0 {
				continue
			}
			show := func(values []float64) string {
				e := perf.NewEstimate(values)
				return e.WithInterval(c.show(e.Median))
			}
			rows = append(rows, strings.Join([]string{x.Cell.String(), show(before), show(after), perf.Change(before, after)}, "\t"))
		}
		if len(rows) > 0 {
			fmt.Fprintf(out, "\n%s: medians\n", c.name)
			t := perf.NewTable(out)
			fmt.Fprintln(t, "\told\tnew\tchange\n"+strings.Join(rows, "\n"))
			t.Flush()
		}
	}
	return nil
}

// known are the rounds of a cell in which a metric is known: none if there is no such cell.
func known(x *perf.Result, metric func(*perf.Sample) float64) (values []float64) {
	if x == nil {
		return nil
	}
	for _, s := range x.Rounds {
		if s != nil && perf.Known(metric(s)) && metric(s) != 0 {
			values = append(values, metric(s))
		}
	}
	return values
}
