package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/internal/perf"
)

// perfReport is what ringnet perf has measured.
type perfReport struct {
	perf.Report
	Server     perf.Machine  `json:"server"`
	PassedOver []reason      `json:"passed_over,omitempty"` // why auto does not use better networks
	BesideTCP  []perfCompare `json:"beside_tcp,omitempty"`  // of datagrams: beside UDP

	// Datagrams are the counters of the sockets of each cell, in all rounds, warming up
	// included.
	Datagrams []*perfCounted `json:"datagrams,omitempty"`

	baseline string        // the peer that the others are compared with
	timeout  time.Duration // of the answers of the server
}

// perfCounted are the counters of a cell's sockets for datagrams.
type perfCounted struct {
	perf.Cell
	Client ringnet.PacketStats `json:"client"`
	Server ringnet.PacketStats `json:"server"`
}

// perfCompare compares a cell with the same over TCP: the ratios of their figures.
type perfCompare struct {
	perf.Cell
	Rate    perf.Estimate `json:"rate"`
	Latency perf.Estimate `json:"latency,omitzero"` // the median
	CPU     perf.Estimate `json:"cpu,omitzero"`     // processor time of both ends, for the same work
}

// finish calculates the medians and ratios of the rounds.
func (r *perfReport) finish() {
	r.Summarise()
	for _, x := range r.Results {
		other := x.Cell
		other.Peer = r.baseline
		tcp := r.Find(other)
		if x.Peer == r.baseline || tcp == nil {
			continue
		}
		if rate := x.Beside(tcp, (*perf.Sample).PerSecond); rate.Median > 0 { // not if no round has measured both
			r.BesideTCP = append(r.BesideTCP, perfCompare{
				Cell:    x.Cell,
				Rate:    rate,
				Latency: x.Beside(tcp, func(s *perf.Sample) float64 { return s.P50 }),
				CPU:     x.Beside(tcp, (*perf.Sample).CPUPerOp),
			})
		}
	}
}

// failure is an error if something could not be measured in any round.
func (r *perfReport) failure() error {
	var errs []error
	for _, x := range r.Results {
		if x.Median.Rounds == 0 {
			errs = append(errs, fmt.Errorf("%v: %s", x.Cell, x.Error))
		}
	}
	return errors.Join(errs...)
}

func (r *perfReport) print(w io.Writer) {
	fmt.Fprintf(w, "client: %s\nserver: %s\nmedians of %d rounds of %v each, and the interval of 95 %% confidence\n", r.Machine, endpoint.Printable(r.Server.String()), r.Rounds, r.Slice)
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
	if r.baseline == "udp" {
		r.printDatagrams(w)
		return
	}
	r.printTable(w, "latency: half the round trip of a message", "latency\tp90\tp99\tround trips", "round trip", perf.PingPong.Key, latencyColumns)
	r.printTable(w, "rate: messages in one direction", "rate\tmessages\tCPU s/GB, client\tserver", "message", perf.Stream.Key, func(x *perf.Result) []string {
		m := x.Median
		return []string{
			m.BytesPerSec.WithInterval(perf.SI(m.BytesPerSec.Median, "B/s")), perf.SI(m.PerSecond.Median, "/s"),
			perf.Number(m.ClientCPUPerGB.Median), perf.Number(m.ServerCPUPerGB.Median),
		}
	})
}

func latencyColumns(x *perf.Result) []string {
	m := x.Median
	return []string{
		m.P50.WithInterval(perf.Nanos(m.P50.Median)), perf.Nanos(m.P90.Median), perf.Nanos(m.P99.Median),
		m.PerSecond.WithInterval(perf.SI(m.PerSecond.Median, "/s")),
	}
}

// printDatagrams prints the results of datagrams, how many were lost, and the counters of
// the sockets.
func (r *perfReport) printDatagrams(w io.Writer) {
	r.printTable(w, "latency: half the round trip of a datagram", "latency\tp90\tp99\tround trips\tlost", "round trip", perf.PingPong.Key, func(x *perf.Result) []string {
		return append(latencyColumns(x), lost(x))
	})
	title := fmt.Sprintf("rate: datagrams that arrive of those sent in one direction without a pause, in batches of %d", datagramBatch)
	r.printTable(w, title, "arrived\tbytes\tlost", "datagram", perf.Stream.Key, func(x *perf.Result) []string {
		m := x.Median
		return []string{
			m.PerSecond.WithInterval(perf.SI(m.PerSecond.Median, "/s")), perf.SI(m.BytesPerSec.Median, "B/s"), lost(x),
		}
	})
	if len(r.Datagrams) == 0 {
		return
	}
	fmt.Fprintf(w, "\nwhat Stats counts, at both ends, in all rounds and while warming up\n")
	t := perf.NewTable(w)
	fmt.Fprintln(t, "\tsize\tconnections\tover\tsent\treceived\tmissed\trefused\tunreachable\tdropped\tforeign")
	for _, d := range r.Datagrams {
		c, s := d.Client, d.Server
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", d.Workload, perf.Size(d.Size), d.Conns, r.PeerName(d.Peer),
			c.Sent+s.Sent, c.Received+s.Received, c.Missed+s.Missed, c.Refused+s.Refused,
			c.Unreachable+s.Unreachable, c.Dropped+s.Dropped, c.Foreign+s.Foreign)
	}
	_ = t.Flush()
}

// lost is the share of a result's datagrams that was lost.
func lost(x *perf.Result) string {
	arrived := 0
	for _, s := range x.Rounds {
		if s != nil {
			arrived += s.Ops
		}
	}
	return fmt.Sprintf("%.2g %%", 100*float64(x.Median.Failed)/float64(x.Median.Failed+arrived))
}

// printTable prints the results of a workload. Its own columns stand between those that all
// workloads have.
func (r *perfReport) printTable(w io.Writer, title, header, operation, workload string, columns func(*perf.Result) []string) {
	fmt.Fprintf(w, "\n%s\n", title)
	t := perf.NewTable(w)
	fmt.Fprintf(t, "size\tconnections\tover\t%s\tCPU/%s, client\tserver\trate by %s's\n", header, operation, strings.ToUpper(r.baseline))
	for _, x := range r.Results {
		if x.Workload != workload || x.Median.Rounds == 0 {
			continue
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t", perf.Size(x.Size), x.Conns, r.PeerName(x.Peer))
		for _, column := range columns(x) {
			fmt.Fprintf(t, "%s\t", column)
		}
		fmt.Fprintf(t, "%s\t%s\t", perf.SI(x.Median.ClientCPUPerOp.Median, "s"), perf.SI(x.Median.ServerCPUPerOp.Median, "s"))
		if i := slices.IndexFunc(r.BesideTCP, func(b perfCompare) bool { return b.Cell == x.Cell }); i >= 0 {
			rate := r.BesideTCP[i].Rate
			fmt.Fprint(t, rate.WithInterval(perf.Number(rate.Median)+" ×"))
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush()
}

// draw draws latency and rate by size for each number of connections, and by number
// of connections for each size.
func (r *perfReport) draw(dir string, sizes []byteSize) error {
	errs := []error{r.WriteSizeCharts(dir)}
	for _, s := range sizes {
		size := int(s)
		errs = append(errs,
			r.WriteConnsChart(filepath.Join(dir, fmt.Sprintf("round-trips-%d.svg", size)),
				"Round trips per second, messages of "+perf.Size(size)+" (higher is better)", "round trips per second",
				perf.PingPong.Key, size, perf.PerSecond(""), func(m perf.Summary) float64 { return m.PerSecond.Median }),
			r.WriteConnsChart(filepath.Join(dir, fmt.Sprintf("streams-%d.svg", size)),
				"Throughput of streams, messages of "+perf.Size(size)+" (higher is better)", "payload per second",
				perf.Stream.Key, size, perf.PerSecond("B"), func(m perf.Summary) float64 { return m.BytesPerSec.Median }))
	}
	return errors.Join(errs...)
}

// printCharts lists the files of the charts.
func (r *perfReport) printCharts(w io.Writer) {
	if len(r.Charts) == 0 {
		fmt.Fprintln(w, "\nno charts: they want two sizes or two numbers of connections")
		return
	}
	fmt.Fprintln(w, "\ncharts:")
	for _, path := range slices.Sorted(slices.Values(r.Charts)) {
		fmt.Fprintf(w, "  %s\n", path)
	}
}
