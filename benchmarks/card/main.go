package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/perf"
)

// peer is what carries the bytes.
type peer struct {
	perf.Peer
	network string          // of package ringnet; raw is a program in C
	config  *ringnet.Config // nil for the default
}

const (
	raw    = "raw"
	rdma   = "rdma"
	tcp    = "tcp"
	busy   = "rdma-busy"
	parked = "rdma-parking"
)

var peers = []peer{
	{perf.Peer{Key: raw, Name: "verbs, in C"}, raw, nil},
	{perf.Peer{Key: rdma, Name: "ringnet"}, rdma, nil},
	{perf.Peer{Key: busy, Name: "ringnet, BusyPoll an hour"}, rdma, &ringnet.Config{BusyPoll: time.Hour}},
	{perf.Peer{Key: parked, Name: "ringnet, BusyPoll -1"}, rdma, &ringnet.Config{BusyPoll: -1}},
	{perf.Peer{Key: tcp, Name: "TCP"}, tcp, nil},
}

// inside is the environment variable with the cell that a process measures, and for how long.
const inside = "RINGNET_CARD_CELL"

type job struct {
	Cell  perf.Cell
	Slice time.Duration
}

func main() {
	var err error
	if text := os.Getenv(inside); text != "" {
		err = measureInside(text)
	} else {
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "card:", err)
		os.Exit(1)
	}
}

func run() error {
	card := flag.String("card", "bin/idealcard", "`program` that runs others on the card")
	rounds := flag.Int("rounds", 7, "how often everything is measured")
	slice := flag.Duration("slice", 200*time.Millisecond, "how long each cell of a round takes")
	only := flag.String("workloads", "", "measure those alone whose key contains this")
	out := flag.String("out", "", "`folder` for results.json and charts; none by default")
	flag.Parse()
	r := &perf.Report{Rounds: *rounds, Slice: *slice}
	for _, p := range peers {
		r.Peers = append(r.Peers, p.Peer)
	}
	r.Begin()
	r.Machine.Device = "ideal0"
	show := perf.NewProgress(os.Stderr)
	err := r.Measure(context.Background(), cells(*only), func(c perf.Cell) (perf.Sample, error) {
		return measure(*card, c, *slice)
	}, show, func() {})
	show.End()
	if err != nil {
		return err
	}
	r.Summarise()
	printTable(os.Stdout, r)
	if *out == "" {
		return nil
	}
	return errors.Join(os.MkdirAll(*out, 0o755), r.WriteSizeCharts(*out), perf.WriteJSON(filepath.Join(*out, "results.json"), r))
}

// cells are all cells of workloads whose key contains a text.
func cells(only string) (all []perf.Cell) {
	for _, w := range workloads {
		if !strings.Contains(w.key, only) {
			continue
		}
		for _, size := range w.sizes {
			for _, conns := range w.conns {
				for _, p := range peers {
					if w.peers == nil || slices.Contains(w.peers, p.Key) {
						all = append(all, perf.Cell{Peer: p.Key, Workload: w.key, Size: size, Conns: conns})
					}
				}
			}
		}
	}
	return all
}

// measure measures one round of a cell in a new process.
func measure(card string, c perf.Cell, slice time.Duration) (s perf.Sample, err error) {
	w, err := findWorkload(c.Workload)
	if err != nil {
		return s, err
	}
	self, err := os.Executable()
	if err != nil {
		return s, err
	}
	text, err := json.Marshal(job{c, slice})
	if err != nil {
		return s, err
	}
	args := []string{"-latency", w.latency.String(), "-dma", w.dma, "--", self}
	if c.Peer == raw {
		args = append(args[:len(args)-1], "raw", w.rawName(), strconv.Itoa(c.Size), strconv.Itoa(int(slice.Milliseconds())))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+10*slice)
	defer cancel()
	cmd := exec.CommandContext(ctx, card, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), inside+"="+string(text))
	if w.procs > 0 {
		cmd.Env = append(cmd.Env, fmt.Sprintf("GOMAXPROCS=%d", w.procs))
	}
	result, err := cmd.Output()
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(result, &s)
}
