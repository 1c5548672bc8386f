package main

import (
	"fmt"
	"io"

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

func printPassed(w io.Writer, passed []reason) {
	for _, x := range passed {
		fmt.Fprintf(w, "auto passes over %s (%s): %s\n", x.Network, x.Code, x.Error)
	}
}

func (r *perfReport) print(w io.Writer) {
	fmt.Fprintf(w, "client: %s\nserver: %s\n", r.Machine, endpoint.Printable(r.Server.String()))
	r.PrintHead(w)
	printPassed(w, r.PassedOver)
	byTCP := report.Column{Head: "rate by TCP's", Value: func(x *report.Result) string {
		if x.ByBase.Median == 0 {
			return ""
		}
		return x.ByBase.Text(report.Times)
	}}
	for _, x := range []struct{ workload, title string }{
		{workload.Connect.Key, "set-up: dial, perf's handshake, one byte there and back, close"},
		{workload.PingPong.Key, "latency: half the round trip of a message"},
		{workload.Stream.Key, "rate: messages in one direction"},
	} {
		fmt.Fprintf(w, "\n%s\n", x.title)
		r.Table(x.workload, report.Median, report.P90, report.P99, report.P999, report.Bytes, report.PerSecond, report.ClientCPU, report.ServerCPU, byTCP).Text(w)
	}
}
