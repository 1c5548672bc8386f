package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/ringnet/ringnet/internal/perf/report"
	"github.com/ringnet/ringnet/internal/perf/workload"
)

// Report is everything that came out, as it is written to results.json.
type Report struct {
	report.Report
	Idle []Idle
}

// print writes a table for each workload, or that of the tail.
func (r *Report) print(out io.Writer, write func(report.Table, io.Writer), tail bool) {
	fmt.Fprintf(out, "\n%s\n", r.Machine)
	r.PrintHead(out)
	fmt.Fprintf(out, "strangers, other processes that compute all the time beside it: %s\n", r.strangers())
	if tail {
		fmt.Fprintf(out, "\nringnet by whichever of the others makes its ratio the worse, in the same rounds; **…**: that one is better.\n"+
			"Latencies of ping-pong are half the round trip; p99.9 wants 1,000 operations in each round, of which connect has %d\n", workload.Connect.Limit)
		write(r.tail(), out)
	} else {
		r.printWorkloads(out, write)
	}
	if len(r.Idle) > 0 {
		fmt.Fprintf(out, "\nconnections opened one after the other, a byte there and back on each, then idle\n")
		write(r.idle(), out)
	}
}

// strangers says how many there were, beside one cell or another.
func (r *Report) strangers() string {
	var numbers []string
	for _, x := range r.Results {
		if n := strconv.Itoa(x.Busy); !slices.Contains(numbers, n) {
			numbers = append(numbers, n)
		}
	}
	return strings.Join(numbers, ", ")
}

func (r *Report) printWorkloads(out io.Writer, write func(report.Table, io.Writer)) {
	for _, w := range benchmarks {
		if t := r.Table(w.Key, r.columns(w.Key)...); len(t) > 1 {
			fmt.Fprintf(out, "\n%s\n", w.Name)
			write(t, out)
		}
	}
}

func p50(s *report.Sample) float64 { return s.P50 }
func p99(s *report.Sample) float64 { return s.P99 }

// columns follow what identifies a row. Behind figures stand their ratios to others', in the same rounds.
func (r *Report) columns(workload string) []report.Column {
	yardsticks := r.yardsticks(workload)
	var names []string
	for _, y := range yardsticks {
		names = append(names, y.name)
	}
	beside := func(metric func(*report.Sample) float64) report.Column {
		return report.Column{Head: "× " + strings.Join(names, " / "), Value: func(x *report.Result) string {
			var ratios []string
			for _, y := range yardsticks {
				text := report.Unknown
				if other := r.At(x, y.of(x.Peer)); other != nil && other != x {
					if ratio := x.Beside(other, metric); ratio.Median > 0 {
						text = ratio.Text(report.Number)
					}
				}
				ratios = append(ratios, text)
			}
			return strings.Join(ratios, " / ")
		}}
	}
	number := func(head string, of func(*report.Summary) report.Estimate) report.Column {
		return report.Column{Head: head, Value: func(x *report.Result) string { return report.Number(of(&x.Median).Median) }}
	}
	return []report.Column{
		report.Median, beside(p50), report.P90, report.P99, beside(p99), report.P999,
		report.PerSecond, beside((*report.Sample).PerSecond), report.Bytes, report.CPU, beside((*report.Sample).CPUPerOp),
		number("strangers had", func(m *report.Summary) report.Estimate { return m.Strangers }),
		{Head: "lock wait each", Value: func(x *report.Result) string { return report.Seconds(x.Median.LockWait.Median) }},
		number("allocs", func(m *report.Summary) report.Estimate { return m.Allocs }),
		{Head: "failed", Value: func(x *report.Result) string { return strconv.Itoa(x.Median.Failed) }},
	}
}

// yardstick is what others are compared with.
type yardstick struct {
	name string
	of   func(peer string) (key string) // the peer that a peer is compared with
}

// yardsticks are a workload's: peers, and other versions of each peer of ringnet.
func (r *Report) yardsticks(workload string) (found []yardstick) {
	for _, info := range r.Peers {
		p, err := findPeer(info.Key)
		if err != nil || !slices.ContainsFunc(r.Results, func(x *report.Result) bool { return x.Peer == p.key && x.Workload == workload && x.Median.Rounds > 0 }) {
			continue
		}
		_, version, _ := strings.Cut(p.key, besideMark)
		switch {
		case p.as == "" && p.yardstick:
			found = append(found, yardstick{p.name, func(string) string { return p.key }})
		case p.as != "" && !slices.ContainsFunc(found, func(y yardstick) bool { return y.name == version }):
			found = append(found, yardstick{version, func(peer string) string { return peer + besideMark + version }})
		}
	}
	return found
}

func (r *Report) idle() report.Table {
	t := report.Table{{"conns", "peer", "opened in", "processor time while idle", "memory", "of each, client", "server"}}
	for _, x := range r.Idle {
		if x.Error != "" {
			t.Row(strconv.Itoa(x.Conns), r.PeerName(x.Peer), x.Error)
			continue
		}
		t.Row(strconv.Itoa(x.Conns), r.PeerName(x.Peer), fmt.Sprintf("%.2f s", x.Seconds), fmt.Sprintf("%.2f %%", 100*x.CPU), report.Size(int(x.Memory)),
			fmt.Sprintf("%.1f KiB", x.Client/1024), fmt.Sprintf("%.1f KiB", x.Server/1024))
	}
	return t
}
