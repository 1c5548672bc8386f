// Package report has the results of rounds of measurements, of ringnet perf and of the
// benchmarks: report.go and rounds.go how they come together, estimate.go medians and their
// intervals, text.go units and progress, table.go tables, machine.go where all this was measured.
//
// Both packages are in a module of their own, so that package ringnet does not depend on the
// packages for statistics and for formatting numbers that this one uses.
package report

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/aclements/go-moremath/stats"
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
		s += " " + Size(c.Size)
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

func (s *Sample) allocs() float64 {
	if s.Allocs == nil {
		return math.NaN()
	}
	return *s.Allocs
}

// SetLatencies sets the latencies from the times of all operations.
func (s *Sample) SetLatencies(times []time.Duration, half bool) {
	d := NewDistribution(times)
	scale := 1.0
	if half {
		scale = 0.5
	}
	s.P50, s.P90, s.P99, s.Mean = scale*d.Quantile(0.5), scale*d.Quantile(0.9), scale*d.Quantile(0.99), scale*d.Mean()
}

// NewDistribution returns the distribution of times, in nanoseconds.
func NewDistribution(times []time.Duration) *stats.Sample {
	d := &stats.Sample{Xs: make([]float64, len(times))}
	for i, t := range times {
		d.Xs[i] = float64(t)
	}
	return d.Sort()
}

// Summary has the medians of the rounds; those that are unknown are 0.
type Summary struct {
	Rounds      int      `json:"rounds"` // that succeeded
	PerSecond   Estimate `json:"per_second"`
	BytesPerSec Estimate `json:"bytes_per_second,omitzero"`
	P50         Estimate `json:"p50,omitzero"` // in nanoseconds
	P90         Estimate `json:"p90,omitzero"`
	P99         Estimate `json:"p99,omitzero"`
	Mean        Estimate `json:"mean,omitzero"`
	ProcessorTime
	Allocs    Estimate `json:"allocs,omitzero"`    // of an operation
	LockWait  Estimate `json:"lock_wait,omitzero"` // seconds for an operation
	Strangers Estimate `json:"strangers,omitzero"` // processors
	Failed    int      `json:"failed,omitzero"`    // operations, in all rounds
}

// ProcessorTime is in seconds, of both sides together and of each: for 1e9 bytes of
// payload, and for one operation.
type ProcessorTime struct {
	CPUPerGB       Estimate `json:"cpu_per_gb,omitzero"`
	ClientCPUPerGB Estimate `json:"client_cpu_per_gb,omitzero"`
	ServerCPUPerGB Estimate `json:"server_cpu_per_gb,omitzero"`
	CPUPerOp       Estimate `json:"cpu_per_op,omitzero"`
	ClientCPUPerOp Estimate `json:"client_cpu_per_op,omitzero"`
	ServerCPUPerOp Estimate `json:"server_cpu_per_op,omitzero"`
}

// Summarise calculates the medians of the rounds so far.
func (r *Result) Summarise() {
	of := func(f func(*Sample) float64) Estimate {
		var values []float64
		for _, s := range r.Rounds {
			if s != nil {
				values = append(values, f(s))
			}
		}
		return NewEstimate(values)
	}
	m := &r.Median
	m.Rounds, m.Failed = 0, 0
	for _, s := range r.Rounds {
		if s != nil {
			m.Rounds++
			m.Failed += s.Failed
		}
	}
	m.PerSecond, m.BytesPerSec = of((*Sample).PerSecond), of((*Sample).BytesPerSec)
	m.P50 = of(func(s *Sample) float64 { return s.P50 })
	m.P90 = of(func(s *Sample) float64 { return s.P90 })
	m.P99 = of(func(s *Sample) float64 { return s.P99 })
	m.Mean = of(func(s *Sample) float64 { return s.Mean })
	m.CPUPerGB = of(func(s *Sample) float64 { return s.CPU / float64(s.Bytes) * 1e9 })
	m.ClientCPUPerGB = of(func(s *Sample) float64 { return (s.CPU - s.ServerCPU) / float64(s.Bytes) * 1e9 })
	m.ServerCPUPerGB = of(func(s *Sample) float64 { return s.ServerCPU / float64(s.Bytes) * 1e9 })
	m.CPUPerOp = of((*Sample).CPUPerOp)
	m.ClientCPUPerOp = of(func(s *Sample) float64 { return (s.CPU - s.ServerCPU) / float64(s.Ops) })
	m.ServerCPUPerOp = of(func(s *Sample) float64 { return s.ServerCPU / float64(s.Ops) })
	m.Allocs = of((*Sample).allocs)
	m.LockWait = of(func(s *Sample) float64 { return s.LockWait / float64(s.Ops) })
	m.Strangers = of(func(s *Sample) float64 { return s.Strangers })
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

// Begin sets when and where the rounds have begun.
func (r *Report) Begin() {
	r.Started, r.Machine, r.Load[0] = time.Now(), ThisMachine(), load()
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

// WriteJSON writes a value to a file, indented.
func WriteJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
