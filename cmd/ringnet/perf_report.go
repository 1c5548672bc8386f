package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/dustin/go-humanize"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/internal/perf/report"
	"github.com/ringnet/ringnet/internal/perf/workload"
)

// perfReport is what ringnet perf has measured.
type perfReport struct {
	report.Report
	Server     report.Machine `json:"server"`
	PassedOver []reason       `json:"passed_over,omitempty"` // why auto does not use better networks
}

func (r *perfReport) print(w io.Writer) {
	fmt.Fprintf(w, "client: %s\nserver: %s\nmedians of %d rounds of %v each", r.Machine, endpoint.Printable(r.Server.String()), r.Rounds, r.Slice)
	if r.Rounds >= report.ForInterval {
		fmt.Fprint(w, ", and the interval of 95 % confidence")
	}
	fmt.Fprintln(w)
	for _, p := range r.Peers {
		if p.Unavailable != "" {
			fmt.Fprintf(w, "not over %s: %s\n", p.Name, p.Unavailable)
		}
	}
	for _, x := range r.PassedOver {
		fmt.Fprintf(w, "auto passes over %s (%s): %s\n", x.Network, x.Code, x.Error)
	}
	for _, x := range r.Results {
		if x.Error != "" {
			fmt.Fprintf(w, "%v: failed in %d of %d rounds: %s\n", x.Cell, r.Rounds-x.Median.Rounds, r.Rounds, x.Error)
		}
	}
	times := func(operations string) []report.Column {
		return []report.Column{
			{Head: "median", Value: func(x *report.Result) string { return x.Median.P50.Text(report.Nanos) }},
			{Head: "p90", Value: func(x *report.Result) string { return report.Nanos(x.Median.P90.Median) }},
			{Head: "p99", Value: func(x *report.Result) string { return report.Nanos(x.Median.P99.Median) }},
			{Head: operations, Value: func(x *report.Result) string { return x.Median.PerSecond.Text(report.Rate("")) }},
		}
	}
	r.printTable(w, "set-up: dial, perf's handshake, one byte there and back, close", "set-up", workload.Connect.Key, times("set-ups"))
	r.printTable(w, "latency: half the round trip of a message", "round trip", workload.PingPong.Key, times("round trips"))
	r.printTable(w, "rate: messages in one direction", "message", workload.Stream.Key, []report.Column{
		{Head: "rate", Value: func(x *report.Result) string { return x.Median.BytesPerSec.Text(report.Rate("B")) }},
		{Head: "messages", Value: func(x *report.Result) string { return report.SI(x.Median.PerSecond.Median, "/s") }},
		{Head: "CPU s/GB, client", Value: func(x *report.Result) string { return report.Number(x.Median.ClientCPUPerGB.Median) }},
		{Head: "server", Value: func(x *report.Result) string { return report.Number(x.Median.ServerCPUPerGB.Median) }},
	})
}

// printTable prints the results of a workload. Its own columns stand between those that all
// workloads have.
func (r *perfReport) printTable(w io.Writer, title, operation, workload string, own []report.Column) {
	results := slices.DeleteFunc(slices.Clone(r.Results), func(x *report.Result) bool { return x.Workload != workload || x.Median.Rounds == 0 })
	fmt.Fprintf(w, "\n%s\n", title)
	report.NewTable(results, slices.Concat([]report.Column{
		{Head: "size", Value: func(x *report.Result) string { return exactSize(x.Size) }},
		{Head: "connections", Value: func(x *report.Result) string { return strconv.Itoa(x.Conns) }},
		{Head: "over", Value: func(x *report.Result) string { return r.PeerName(x.Peer) }},
	}, own, []report.Column{
		{Head: "CPU/" + operation + ", client", Value: func(x *report.Result) string { return report.Seconds(x.Median.ClientCPUPerOp.Median) }},
		{Head: "server", Value: func(x *report.Result) string { return report.Seconds(x.Median.ServerCPUPerOp.Median) }},
		{Head: "rate by TCP's", Value: func(x *report.Result) string {
			if x.ByBase.Median == 0 {
				return ""
			}
			return x.ByBase.Text(report.Times)
		}},
	})).Text(w)
}

// exactSize is a number of bytes in the unit in which it is a short number, or in bytes.
func exactSize(n int) string {
	for _, text := range []string{report.Size(n), humanize.Bytes(uint64(n))} {
		if is, err := humanize.ParseBytes(text); err == nil && is == uint64(n) {
			return text
		}
	}
	return fmt.Sprintf("%d B", n)
}
