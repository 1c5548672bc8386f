package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ringnet/ringnet/internal/perf/report"
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
		if p.ours == nil {
			continue
		}
		name := filepath.Base(path)
		other := &peer{name: p.name + ", " + name, key: besideOf(key, name), beside: &beside{path, p}}
		peers, all = append(peers, other), append(all, other.key)
		p.fresh = &beside{self, p}
	}
	return all, nil
}

// besideTimeout ends a program in which everybody waits.
const besideTimeout = 2 * time.Minute

// measure runs the program, which measures a round of a cell.
func (o *beside) measure(b *bench, c report.Cell) (report.Sample, error) {
	dir, err := os.MkdirTemp("", "ringnet-benchmarks-")
	if err != nil {
		return report.Sample{}, err
	}
	defer os.RemoveAll(dir)
	args := []string{
		"-peers", o.peer.key, "-workloads", c.Workload, "-conns", strconv.Itoa(c.Conns), "-sizes", strconv.Itoa(max(1, c.Size)),
		"-rounds", "1", "-slice", b.slice.String(), "-idle", "none", "-out", dir,
	}
	switch {
	case b.card != "": // which chooses the device
		args = append(args, "-rdma", "-address", b.host)
	case b.onDevice:
		args = append(args, "-rdma", "-address", b.host, "-device", b.device)
	}
	if b.oneProcess {
		args = append(args, "-one-process")
	}
	ctx, cancel := context.WithTimeout(context.Background(), besideTimeout)
	defer cancel()
	w, err := findWorkload(c.Workload)
	if err != nil {
		return report.Sample{}, err
	}
	if out, err := b.command(ctx, w, o.program, args...).CombinedOutput(); err != nil {
		return report.Sample{}, fmt.Errorf("%s: %w: %s", o.program, err, lastLine(string(out)))
	}
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		return report.Sample{}, err
	}
	var r struct { // the part of the report that all versions have
		Results []struct{ Rounds []*report.Sample }
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return report.Sample{}, err
	}
	if len(r.Results) != 1 || len(r.Results[0].Rounds) != 1 || r.Results[0].Rounds[0] == nil {
		return report.Sample{}, fmt.Errorf("%s has measured something else than %v", o.program, c)
	}
	return *r.Results[0].Rounds[0], nil
}
