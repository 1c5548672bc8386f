package main

import (
	"cmp"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ringnet/ringnet/benchmarks/process"
	"github.com/ringnet/ringnet/internal/perf/report"
)

// measureBeside adds, for each of ringnet's peers, that of another version. From then on this
// version, which is self, has new processes for each cell, too, so that both versions are measured
// in processes of the same age.
func (o *options) measureBeside(self string) error {
	program, err := filepath.Abs(o.beside)
	if err != nil {
		return err
	}
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("-beside wants a build of this program: %w", err)
	}
	version := filepath.Base(program)
	for _, key := range o.peers {
		p, _ := findPeer(key)
		if p.ours == nil {
			continue
		}
		other := *p
		other.name, other.key = p.name+", "+version, key+besideMark+version
		other.program, other.as = program, key
		p.program = self
		peers, o.peers = append(peers, &other), append(o.peers, other.key)
	}
	return nil
}

// besideMark is what the key of another version's peer has between that of this one's and the version.
const besideMark = "@"

// apartTime is what a round of a cell may take.
const apartTime = 2 * time.Minute

// measureApart has the peer's program measure a round of a cell, client and server.
func (b *bench) measureApart(p *peer, w *benchmark, c report.Cell) (s report.Sample, err error) {
	args := []string{
		"-peers", cmp.Or(p.as, p.key), "-workloads", c.Workload, "-conns", strconv.Itoa(c.Conns), "-sizes", strconv.Itoa(max(1, c.Size)),
		"-rounds", "1", "-slice", b.slice.String(), "-idle", "none",
	}
	switch {
	case b.card != "": // which chooses the device
		args = append(args, "-rdma", "-address", b.host)
	case b.rdma:
		args = append(args, "-rdma", "-address", b.host, "-device", b.device)
	}
	if b.oneProcess {
		args = append(args, "-one-process")
	}
	call := process.Call{Program: p.program, Args: args, Most: apartTime}
	if b.card != "" {
		call = w.card.on(b.card, call)
	}
	var r struct { // the part of the report that all versions have
		Results []struct{ Rounds []*report.Sample }
	}
	if err := call.Measure(b.ctx, &r); err != nil {
		return s, err
	}
	if len(r.Results) != 1 || len(r.Results[0].Rounds) != 1 || r.Results[0].Rounds[0] == nil {
		return s, fmt.Errorf("%s has measured something else than %v", p.program, c)
	}
	return *r.Results[0].Rounds[0], nil
}
