// Package report has the results of rounds of measurements, of ringnet perf and of the
// benchmarks: report.go how they come together, estimate.go medians and their intervals, text.go
// units and progress, table.go tables, machine.go where all this was measured.
//
// Both packages are in a module of their own, so that package ringnet does not depend on the
// packages for statistics and for formatting numbers that this one uses.
package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report has all results, as they are written to JSON.
type Report struct {
	Started time.Time     `json:"started"`
	Machine Machine       `json:"machine"`
	Load    [2]float64    `json:"load"` // average of a minute, before and after
	Rounds  int           `json:"rounds"`
	Slice   time.Duration `json:"slice"` // in nanoseconds
	Peers   []Peer        `json:"peers"`
	Base    string        `json:"base,omitempty"` // the peer that others are compared with
	Results []*Result     `json:"results"`
}

// Cell is what is measured: a workload over a network, with a size, a number of
// connections, and a number of strangers, other processes that compute all the time.
type Cell struct {
	Peer     string `json:"peer"`
	Workload string `json:"workload"`
	Size     int    `json:"size"` // of messages, in bytes; 0 where the workload has no sizes
	Conns    int    `json:"conns"`
	Busy     int    `json:"busy,omitzero"` // strangers
}

func (c Cell) String() string {
	s := c.Workload
	if c.Size > 0 {
		s += " " + ExactSize(c.Size)
	}
	s = fmt.Sprintf("%s ×%d %s", s, c.Conns, c.Peer)
	if c.Busy > 0 {
		s += fmt.Sprintf(" beside %d", c.Busy)
	}
	return s
}

// Peer is a network, or a program that is compared with networks.
type Peer struct {
	Key         string `json:"key"`
	Name        string `json:"name"`
	Unavailable string `json:"unavailable,omitempty"` // why it cannot be measured, if so
}

// Result is the results of a cell.
type Result struct {
	Cell
	Rounds []*Sample `json:"rounds"` // nil where a round failed
	Median Summary   `json:"median"`
	ByBase Estimate  `json:"by_base,omitzero"` // operations per second, by those of the peer of the report's Base
	Error  string    `json:"error,omitempty"`  // of the last round that failed
}

// Sample is the result of one round of a cell. Latencies are in nanoseconds, and 0 if
// unknown; with the workload ping-pong they are half the round trip.
type Sample struct {
	Ops       int      `json:"ops"`
	Bytes     int      `json:"bytes"` // payload, in both directions
	Seconds   float64  `json:"seconds"`
	P50       float64  `json:"p50,omitzero"`
	P90       float64  `json:"p90,omitzero"`
	P99       float64  `json:"p99,omitzero"`
	P999      float64  `json:"p999,omitzero"` // 99.9 %; 0 also if fewer than 1,000 were timed, of which it is the slowest
	Mean      float64  `json:"mean,omitzero"`
	Failed    int      `json:"failed,omitzero"`     // operations, besides Ops
	CPU       float64  `json:"cpu,omitzero"`        // seconds, of both sides; 0 if unknown
	ServerCPU float64  `json:"server_cpu,omitzero"` // of these the server's
	Allocs    *float64 `json:"allocs,omitempty"`    // of an operation, on both sides; nil of programs
	LockWait  float64  `json:"lock_wait,omitzero"`  // seconds that goroutines of both sides waited for locks; 0 if unknown
	Strangers float64  `json:"strangers,omitzero"`  // processors that strangers had; 0 if unknown
}

// PerSecond is operations for a second.
func (s *Sample) PerSecond() float64 { return float64(s.Ops) / s.Seconds }

// BytesPerSec is payload for a second.
func (s *Sample) BytesPerSec() float64 { return float64(s.Bytes) / s.Seconds }

// CPUPerOp is the processor time of an operation, of both sides, in seconds.
func (s *Sample) CPUPerOp() float64 { return s.CPU / float64(s.Ops) }

// forP999 is how many times there have to be for one in a thousand.
const forP999 = 1000

// SetLatencies sets the latencies from the times of all operations, in nanoseconds, or from half of each.
func (s *Sample) SetLatencies(times *hdrhistogram.Histogram, half bool) {
	unit := 1.0
	if half {
		unit = 0.5
	}
	at := func(percentile float64) float64 { return unit * float64(times.ValueAtPercentile(percentile)) }
	s.P50, s.P90, s.P99, s.Mean = at(50), at(90), at(99), unit*times.Mean()
	if times.TotalCount() >= forP999 {
		s.P999 = at(99.9)
	}
}

// Summary has the medians of the rounds; those that are unknown are 0.
type Summary struct {
	Rounds      int      `json:"rounds"` // that succeeded
	PerSecond   Estimate `json:"per_second"`
	BytesPerSec Estimate `json:"bytes_per_second,omitzero"`
	P50         Estimate `json:"p50,omitzero"` // in nanoseconds
	P90         Estimate `json:"p90,omitzero"`
	P99         Estimate `json:"p99,omitzero"`
	P999        Estimate `json:"p999,omitzero"` // 0 if a round has none
	Mean        Estimate `json:"mean,omitzero"`

	// Processor time in seconds, of both sides together and of each: for 1e9 bytes of payload,
	// and for one operation.
	CPUPerGB       Estimate `json:"cpu_per_gb,omitzero"`
	ClientCPUPerGB Estimate `json:"client_cpu_per_gb,omitzero"`
	ServerCPUPerGB Estimate `json:"server_cpu_per_gb,omitzero"`
	CPUPerOp       Estimate `json:"cpu_per_op,omitzero"`
	ClientCPUPerOp Estimate `json:"client_cpu_per_op,omitzero"`
	ServerCPUPerOp Estimate `json:"server_cpu_per_op,omitzero"`

	Allocs    Estimate `json:"allocs,omitzero"`    // of an operation
	LockWait  Estimate `json:"lock_wait,omitzero"` // seconds for an operation
	Strangers Estimate `json:"strangers,omitzero"` // processors
	Failed    int      `json:"failed,omitzero"`    // operations, in all rounds
}

// Summarise calculates the medians of the rounds so far.
func (r *Result) Summarise() {
	m := Summary{}
	var ended []*Sample
	for _, s := range r.Rounds {
		if s != nil {
			ended = append(ended, s)
			m.Failed += s.Failed
		}
	}
	m.Rounds = len(ended)
	of := func(metric func(*Sample) float64) Estimate {
		var values []float64
		for _, s := range ended {
			values = append(values, metric(s))
		}
		return NewEstimate(values)
	}
	m.PerSecond, m.BytesPerSec = of((*Sample).PerSecond), of((*Sample).BytesPerSec)
	m.P50 = of(func(s *Sample) float64 { return s.P50 })
	m.P90 = of(func(s *Sample) float64 { return s.P90 })
	m.P99 = of(func(s *Sample) float64 { return s.P99 })
	// Rounds that have none are slow, and without them the others would be too good.
	if !slices.ContainsFunc(ended, func(s *Sample) bool { return s.P999 == 0 }) {
		m.P999 = of(func(s *Sample) float64 { return s.P999 })
	}
	m.Mean = of(func(s *Sample) float64 { return s.Mean })
	m.CPUPerGB = of(func(s *Sample) float64 { return s.CPU / float64(s.Bytes) * 1e9 })
	m.ClientCPUPerGB = of(func(s *Sample) float64 { return (s.CPU - s.ServerCPU) / float64(s.Bytes) * 1e9 })
	m.ServerCPUPerGB = of(func(s *Sample) float64 { return s.ServerCPU / float64(s.Bytes) * 1e9 })
	m.CPUPerOp = of((*Sample).CPUPerOp)
	m.ClientCPUPerOp = of(func(s *Sample) float64 { return (s.CPU - s.ServerCPU) / float64(s.Ops) })
	m.ServerCPUPerOp = of(func(s *Sample) float64 { return s.ServerCPU / float64(s.Ops) })
	m.LockWait = of(func(s *Sample) float64 { return s.LockWait / float64(s.Ops) })
	m.Strangers = of(func(s *Sample) float64 { return s.Strangers })
	if len(ended) > 0 && ended[0].Allocs != nil {
		m.Allocs = of(func(s *Sample) float64 { return *s.Allocs })
	}
	r.Median = m
}

// Beside is the ratio of a metric of r to that of another result: the median of the
// rounds' ratios.
func (r *Result) Beside(other *Result, metric func(*Sample) float64) Estimate {
	var ratios []float64
	for round, s := range r.Rounds {
		if o := other.Rounds[round]; s != nil && o != nil {
			ratios = append(ratios, metric(s)/metric(o))
		}
	}
	return NewEstimate(ratios)
}

// Find returns the results of a cell, or nil.
func (r *Report) Find(c Cell) *Result {
	i := slices.IndexFunc(r.Results, func(x *Result) bool { return x.Cell == c })
	if i < 0 {
		return nil
	}
	return r.Results[i]
}

// At returns the result of the cell that differs from that of x in the peer alone, or nil.
func (r *Report) At(x *Result, peer string) *Result {
	c := x.Cell
	c.Peer = peer
	return r.Find(c)
}

// PeerName is the name of the peer with the key.
func (r *Report) PeerName(key string) string {
	for _, p := range r.Peers {
		if p.Key == key {
			return p.Name
		}
	}
	return key
}

// Begin sets when and where the rounds begin, how many there will be, and how long each cell takes.
func (r *Report) Begin(rounds int, slice time.Duration) {
	r.Started, r.Machine, r.Rounds, r.Slice = time.Now(), ThisMachine(), rounds, slice
	r.Load[0] = load()
}

// maxFailures is after how many failures a cell is not measured any more.
const maxFailures = 3

// Measure measures the rounds of all cells and puts the results into the report. In each round it
// measures the cells in order, so that a machine that becomes slower or faster meanwhile does so
// for all of them. After each round it calls save. When ctx ends it returns early, with the error
// of ctx.
func (r *Report) Measure(ctx context.Context, cells []Cell, measure func(Cell) (Sample, error), show *Progress, save func()) error {
	defer show.End()
	failures := make([]int, len(cells))
	for _, c := range cells {
		r.Results = append(r.Results, &Result{Cell: c, Rounds: make([]*Sample, r.Rounds)})
	}
	for round := range r.Rounds {
		for i, c := range cells {
			if failures[i] == maxFailures {
				continue
			}
			s, err := measure(c)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				failures[i]++
				r.Results[i].Error = err.Error()
				show.Note("%v: %v", c, err)
				continue
			}
			r.Results[i].Rounds[round] = &s
			show.measured(round, r.Rounds, i, len(cells), c, &s)
		}
		r.Summarise()
		save() // a long run that is cut short has not been in vain
	}
	return nil
}

// Summarise calculates the medians of all results so far.
func (r *Report) Summarise() {
	r.Load[1] = load()
	for _, x := range r.Results {
		x.Summarise()
		if base := r.At(x, r.Base); base != nil && base != x {
			x.ByBase = x.Beside(base, (*Sample).PerSecond)
		}
	}
}

// Failure is an error if something could not be measured in any round.
func (r *Report) Failure() error {
	var errs []error
	for _, x := range r.Results {
		if x.Median.Rounds == 0 {
			errs = append(errs, fmt.Errorf("%v: %s", x.Cell, x.Error))
		}
	}
	return errors.Join(errs...)
}

// WriteJSON writes a value to a file, indented.
func WriteJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// ReadJSON reads what WriteJSON has written.
func ReadJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
