package main

import (
	"cmp"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Report is everything that came out, as it is written to results.json.
type Report struct {
	Started time.Time
	Machine Machine
	Load    [2]float64 // average of a minute, before and after
	Options struct {
		Rounds int
		Slice  time.Duration
	}
	Peers   []PeerInfo
	Results []*Result
	Idle    []Idle
	Library *Library `json:",omitempty"`
	Figures []Figure
}

// Machine is what the client ran on.
type Machine struct {
	CPU    string
	CPUs   int
	Memory int // bytes
	Kernel string
	Go     string
	Device string `json:",omitempty"` // RDMA
}

// PeerInfo says whether a peer could be measured.
type PeerInfo struct {
	Key         string
	Name        string
	Unavailable string `json:",omitempty"` // why
}

// Result is what was measured of a cell.
type Result struct {
	Cell
	Rounds   []*Sample // nil where a round failed
	Median   Summary
	Error    string `json:",omitempty"` // of the last round that failed
	failures int
}

// Sample is one round of a cell. The times are in nanoseconds, 0 if unknown,
// and of half the round trip where the workload is ping-pong.
type Sample struct {
	Ops     int
	Bytes   int // payload, in both directions
	Seconds float64
	P50     float64
	P90     float64
	P99     float64
	Mean    float64
	Failed  int      `json:",omitempty"` // operations, besides Ops
	CPU     float64  // seconds, of both sides; 0 if unknown
	Allocs  *float64 // of an operation, on both sides; nil of programs

	LockWait float64 // seconds that goroutines of both sides waited for locks; 0 if unknown
}

func (s *Sample) rate() float64      { return float64(s.Ops) / s.Seconds }
func (s *Sample) bandwidth() float64 { return float64(s.Bytes) / s.Seconds }
func (s *Sample) p50() float64       { return s.P50 }
func (s *Sample) p90() float64       { return s.P90 }
func (s *Sample) p99() float64       { return s.P99 }
func (s *Sample) mean() float64      { return s.Mean }
func (s *Sample) cpu() float64       { return s.CPU / float64(s.Ops) }

func (s *Sample) allocs() float64 {
	if s.Allocs == nil {
		return math.NaN()
	}
	return *s.Allocs
}

// Summary has the medians of the rounds; what is unknown is 0.
type Summary struct {
	Rounds        int // that succeeded
	PerSecond     float64
	BytesPerSec   float64
	P50           float64
	P90           float64
	P99           float64
	Mean          float64
	CPUPerGB      float64 // seconds for 1e9 bytes
	CPUPerMillion float64 // seconds for 1e6 operations
	Allocs        float64 // of an operation
	LockWait      float64 // seconds for 1e6 operations
	Failed        int     `json:",omitempty"` // operations, in all rounds
}

func (r *Result) summarise() {
	of := func(f func(*Sample) float64) float64 {
		var values []float64
		for _, s := range r.Rounds {
			if s != nil {
				values = append(values, f(s))
			}
		}
		return known(median(values))
	}
	r.Median.Rounds, r.Median.Failed = 0, 0
	for _, s := range r.Rounds {
		if s != nil {
			r.Median.Rounds++
			r.Median.Failed += s.Failed
		}
	}
	r.Median.PerSecond = of((*Sample).rate)
	r.Median.BytesPerSec = of((*Sample).bandwidth)
	r.Median.P50 = of((*Sample).p50)
	r.Median.P90 = of((*Sample).p90)
	r.Median.P99 = of((*Sample).p99)
	r.Median.Mean = of((*Sample).mean)
	r.Median.CPUPerGB = of(func(s *Sample) float64 { return s.CPU / float64(s.Bytes) * 1e9 })
	r.Median.CPUPerMillion = of(func(s *Sample) float64 { return s.cpu() * 1e6 })
	r.Median.Allocs = of((*Sample).allocs)
	r.Median.LockWait = of(func(s *Sample) float64 { return s.LockWait / float64(s.Ops) * 1e6 })
}

// known is 0 for what JSON has no word for.
func known(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	return x
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.SortedFunc(slices.Values(values), cmp.Compare)
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

func (r *Report) find(c Cell) *Result {
	i := slices.IndexFunc(r.Results, func(x *Result) bool { return x.Cell == c })
	if i < 0 {
		return nil
	}
	return r.Results[i]
}

func (r *Report) peerName(key string) string {
	for _, p := range r.Peers {
		if p.Key == key {
			return p.Name
		}
	}
	return key
}

// finish works out what follows from the rounds so far.
func (r *Report) finish() {
	r.Load[1] = load()
	for _, x := range r.Results {
		x.summarise()
	}
	r.Figures = r.figures()
}

// write leaves results.json and the charts in the folder, which exists.
func (r *Report) write(dir string) error {
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	return r.writeCharts(dir)
}

func thisMachine(device string) Machine {
	m := Machine{
		CPU:    "unknown CPU",
		CPUs:   runtime.NumCPU(),
		Memory: procNumber("/proc/meminfo", "MemTotal:") << 10,
		Go:     runtime.Version(),
		Device: device,
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	var u syscall.Utsname
	if err := syscall.Uname(&u); err == nil {
		m.Kernel = "Linux " + utsString(u.Release[:])
	}
	return m
}

func utsString[T ~int8 | ~uint8](field []T) string {
	var b []byte
	for _, c := range field {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}

func load() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), " ")
	return number(first)
}
