package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/ringnet/ringnet/benchmarks/charts"
	"github.com/ringnet/ringnet/benchmarks/process"
	"github.com/ringnet/ringnet/internal/perf/report"
)

const speedTime = 2 * time.Hour // for slow machines

// speedPeers are the peers of benchmarks that are measured.
const speedPeers = "rdma,rdma-busy,tcp,raw,ib_send,ib_send-events,ib_write,rsockets,rsockets-blocking"

// speed runs benchmarks.
func (s *session) speed(p *part) {
	dir, err := os.MkdirTemp("", "card-report")
	if err != nil {
		p.problem("%v", err)
		return
	}
	defer os.RemoveAll(dir)
	before := s.counters()
	if err := s.runBenchmarks(dir); err != nil {
		p.problem("%v", err)
	}
	r := new(report.Report)
	if err := report.ReadJSON(filepath.Join(dir, "results.json"), r); err != nil {
		p.problem("benchmarks has left no results: %v", err)
		return
	}
	r.Machine.Device = s.report.scrub.addresses(r.Machine.Device)
	files, err := charts.Sizes(r, s.out)
	if err != nil {
		p.problem("charts: %v", err)
	}
	for _, file := range files {
		p.Charts = append(p.Charts, filepath.Base(file))
	}
	s.reasons(p, r)
	p.Note = fmt.Sprintf("Median of %d rounds of %v. The program in C has both ends in one process; ringnet's figures are of two processes.", r.Rounds, r.Slice)
	p.Rows = r.Side("", title, value)
	s.addRisen(p, before, "a message found no receive: ringnet promises 0, others may not")
	s.report.Speed = r
}

func (s *session) runBenchmarks(dir string) error {
	args := []string{"-out", dir, "-device", s.device, "-peers", speedPeers, "-workloads", "ping-pong,stream,connect",
		"-conns", "1", "-idle", "none"}
	if s.quick {
		args = append(args, "-quick")
	} else {
		args = append(args, "-rounds", "5")
	}
	if s.connect == "" {
		args = append(args, "-rdma", "-address", s.address)
	} else {
		var there string
		if err := s.server.Call("Server.StartBenchmarks", struct{}{}, &there); err != nil {
			return err
		}
		defer s.kill()
		_, listens, err := net.SplitHostPort(there)
		if err != nil {
			return err
		}
		args = append(args, "-connect", net.JoinHostPort(s.connect, listens))
	}
	_, err := s.call(s.ctx, process.Call{Program: "benchmarks", Args: args, Most: speedTime})
	return err
}

// reasons says what was not measured, and why.
func (s *session) reasons(p *part, r *report.Report) {
	for i := range r.Peers {
		if why := &r.Peers[i].Unavailable; *why != "" {
			*why = s.report.scrub.foreign(*why)
			p.problem("%s: %s", r.Peers[i].Name, *why)
		}
	}
	for _, x := range r.Results {
		if x.Error != "" {
			x.Error = s.report.scrub.foreign(x.Error)
			p.problem("%v: %s", x.Cell, x.Error)
		}
	}
}

func title(c report.Cell) string {
	switch c.Workload {
	case "ping-pong":
		return "half a round trip of " + report.Size(c.Size)
	case "stream":
		return "stream of " + report.Size(c.Size)
	}
	return "dial, a byte there and back, close"
}

// value is the rate of a stream, and else the median time, or the mean of programs that know no other.
func value(x *report.Result) string {
	switch {
	case x.Workload == "stream":
		return report.SI(x.Median.BytesPerSec.Median, "B/s")
	case x.Median.P50.Median == 0:
		return report.Nanos(x.Median.Mean.Median) + " (mean)"
	}
	return report.Nanos(x.Median.P50.Median)
}
