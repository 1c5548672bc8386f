package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/ringnet/ringnet/internal/perf/report"
)

// compared are the metrics by which reports are compared, and how each is shown.
var compared = []struct {
	name   string
	metric func(*report.Sample) float64
	show   func(float64) string
}{
	{"operations per second", (*report.Sample).PerSecond, perSecond},
	{"median time of an operation", p50, report.Nanos},
	{"processor time of an operation, both sides", (*report.Sample).CPUPerOp, report.Seconds},
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
	}
	for _, c := range compared {
		t := report.Table{{"", "old", "new", "change"}}
		for _, x := range reports[0].Results {
			before, after := known(x, c.metric), known(reports[1].Find(x.Cell), c.metric)
			if len(before) == 0 || len(after) == 0 {
				continue
			}
			t.Row(x.Cell.String(), report.NewEstimate(before).Text(c.show), report.NewEstimate(after).Text(c.show), report.Change(before, after))
		}
		if len(t) > 1 {
			fmt.Fprintf(out, "\n%s: medians\n", c.name)
			t.Text(out)
		}
	}
	return nil
}

// known are the rounds of a cell in which a metric is known: none if there is no such cell.
func known(x *report.Result, metric func(*report.Sample) float64) (values []float64) {
	if x == nil {
		return nil
	}
	for _, s := range x.Rounds {
		if s != nil && report.Known(metric(s)) && metric(s) != 0 {
			values = append(values, metric(s))
		}
	}
	return values
}
