package cardreport

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/ringnet/ringnet/benchmarks/charts"
	"github.com/ringnet/ringnet/benchmarks/process"
	"github.com/ringnet/ringnet/internal/perf/report"
	"github.com/ringnet/ringnet/internal/perf/workload"
)

const speedTime = 2 * time.Hour // for slow machines

var speedWorkloads = []workload.Workload{workload.PingPong, workload.Stream, workload.Connect}

// speedPeers are the peers of benchmarks that are measured.
const speedPeers = "rdma,rdma-busy,rdma-dedicated,tcp,raw,ib_send,ib_send-events,ib_write,rsockets,rsockets-blocking"

// speed runs benchmarks.
func (s *session) speed(p *Part) {
	own, other := s.bothCounters()
	args := []string{"-device", s.device, "-peers", speedPeers, "-workloads", "ping-pong,stream,connect", "-conns", "1"}
	if s.quick {
		args = append(args, "-rounds", "1", "-slice", "5ms", "-sizes", "64,65536")
	} else {
		args = append(args, "-rounds", "5")
	}
	if s.connect == "" {
		args = append(args, "-rdma", "-address", s.address)
	} else {
		args = append(args, "-connect", s.otherEnd())
		var device string
		if err := s.server.Call("Host.Device", struct{}{}, &device); err == nil {
			args = append(args, "-peer-device", device)
		}
	}
	r := new(report.Report)
	if err := (process.Call{Program: filepath.Join(s.bin, "benchmarks"), Args: args, Most: speedTime}).Measure(s.ctx, r); err != nil {
		p.problem("%v", err)
	}
	if len(r.Peers) == 0 {
		return
	}
	r.Machine.Device = s.report.scrub.text(r.Machine.Device) // of which charts tell, too
	files, err := charts.Sizes(r, s.out)
	if err != nil {
		p.problem("charts: %v", err)
	}
	for _, file := range files {
		p.Charts = append(p.Charts, filepath.Base(file))
	}
	p.reasons(r)
	p.Note = fmt.Sprintf("Median of %d rounds of %v. The program in C has both ends in one process; ringnet's figures are of two processes.", r.Rounds, r.Slice)
	for _, workload := range speedWorkloads {
		p.Tables = append(p.Tables, titled{workload.Name, r.Table(workload.Key, report.Median, report.P99, report.P999, report.Bytes, report.CPU)})
	}
	s.addBothRisen(p, own, other, "a message found no receive: ringnet promises 0, others may not")
	s.report.Speed = r
}

// reasons says what was not measured, and why.
func (p *Part) reasons(r *report.Report) {
	for _, x := range r.Peers {
		if x.Unavailable != "" {
			p.problem("%s: %s", x.Name, x.Unavailable)
		}
	}
	for _, x := range r.Results {
		if x.Error != "" {
			p.problem("%v: %s", x.Cell, x.Error)
		}
	}
}
