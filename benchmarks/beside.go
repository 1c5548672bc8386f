package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ringnet/ringnet/internal/perf"
)

// A beside is a build of this program with this or another version of ringnet. It is run,
// client and server, for one round of one cell at a time, in turn with the others.
type beside struct {
	program string
	peer    *peer // this version's peer of the same key
}

// measureBeside adds, for each of ringnet's peers among keys, that of the program, and
// returns all keys. From then on this version has new processes for each cell, too, so
// that both versions are measured in processes of the same age.
func measureBeside(program string, keys []string) ([]string, error) {
	path, err := filepath.Abs(program)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("-beside wants a build of this program: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	all := keys
	for _, key := range keys {
		p, err := findPeer(key)
		if err != nil {
			return nil, err
		}
		if p.ours == nil || p.only != nil {
			continue
		}
		name := filepath.Base(path)
		other := &peer{name: p.name + ", " + name, key: key + "@" + name, beside: &beside{path, p}}
		peers, all = append(peers, other), append(all, other.key)
		p.fresh = &beside{self, p}
	}
	return all, nil
}

// besideTimeout ends a program in which everybody waits.
const besideTimeout = 2 * time.Minute

// measure runs the program, which measures a round of a cell.
func (o *beside) measure(b *bench, c perf.Cell) (perf.Sample, error) {
	dir, err := os.MkdirTemp("", "ringnet-benchmarks-")
	if err != nil {
		return perf.Sample{}, err
	}
	defer os.RemoveAll(dir)
	args := []string{
		"-peers", o.peer.key, "-workloads", c.Workload, "-conns", strconv.Itoa(c.Conns), "-sizes", strconv.Itoa(max(1, c.Size)),
		"-rounds", "1", "-slice", b.slice.String(), "-idle", "none", "-library=false", "-out", dir,
	}
	if b.onDevice {
		args = append(args, "-rdma", "-address", b.host, "-device", b.device)
	}
	if b.oneProcess {
		args = append(args, "-one-process")
	}
	ctx, cancel := context.WithTimeout(context.Background(), besideTimeout)
	defer cancel()
	if out, err := exec.CommandContext(ctx, o.program, args...).CombinedOutput(); err != nil {
		return perf.Sample{}, fmt.Errorf("%s: %w: %s", o.program, err, lastLine(string(out)))
	}
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		return perf.Sample{}, err
	}
	var r struct { // the part of the report that all versions have
		Results []struct{ Rounds []*perf.Sample }
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return perf.Sample{}, err
	}
	if len(r.Results) != 1 || len(r.Results[0].Rounds) != 1 || r.Results[0].Rounds[0] == nil {
		return perf.Sample{}, fmt.Errorf("%s has measured something else than %v", o.program, c)
	}
	return *r.Results[0].Rounds[0], nil
}

// besideFigures compare this version with the one beside it.
func (r *Report) besideFigures() (figures []Figure) {
	for _, x := range r.Results {
		other, err := findPeer(x.Peer)
		if err != nil || other.beside == nil || x.Median.Rounds == 0 {
			continue
		}
		own := x.Cell
		own.Peer = other.beside.peer.key
		rule := rule{
			what: own.String(), against: filepath.Base(other.beside.program),
			subject: own.Peer, others: []string{x.Peer}, workload: x.Workload, size: x.Size, metric: (*perf.Sample).PerSecond,
		}
		if x.Conns == 1 {
			rule.target, rule.goal = 0.9, 1
		}
		figures = append(figures, r.compare(rule, x.Conns, x.Busy))
	}
	return figures
}
