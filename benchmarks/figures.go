package main

import (
	"fmt"
	"math"
	"slices"
)

// Figure is a comparison that the project has set itself a mark for.
type Figure struct {
	What    string
	Against string
	Target  string
	Ratios  []float64 `json:",omitempty"` // of the rounds
	Value   float64   // their median, or the one value there is
	Verdict string    // met, not met, or why it cannot be told
}

const (
	met          = "met"
	notMet       = "not met"
	notMeasured  = "not measured: "
	noTarget     = "for information"
	noAllocation = 0.005 // what is still 0 in two decimals: runtime and report allocate now and then
)

// rule is a figure made of two cells.
type rule struct {
	what, against  string
	subject, other string // peers
	workload       string
	size           int
	metric         func(*Sample) float64
	target, goal   float64 // 0 for none
	atMost         bool
}

var rules = []rule{
	{"shm, 64 B ping-pong, round trips/s", "TCP", "shm", "tcp", "ping-pong", 64, (*Sample).rate, 4, 0, false},
	{"shm, 64 B ping-pong, round trips/s", "Unix socket", "shm", "unix", "ping-pong", 64, (*Sample).rate, 2.5, 0, false},
	{"shm, 64 B stream, messages/s", "TCP", "shm", "tcp", "stream", 64, (*Sample).rate, 12, 20, false},
	{"shm, 64 KiB stream", "TCP", "shm", "tcp", "stream", 64 << 10, (*Sample).rate, 2.5, 0, false},
	{"shm, 1 MiB stream", "TCP", "shm", "tcp", "stream", 1 << 20, (*Sample).rate, 2, 0, false},
	{"shm, 64 KiB stream", "Unix socket", "shm", "unix", "stream", 64 << 10, (*Sample).rate, 1.25, 0, false},
	{"shm, 1 MiB stream", "Unix socket", "shm", "unix", "stream", 1 << 20, (*Sample).rate, 1.25, 0, false},
	{"shm, net/http GET of 1 KiB", "TCP", "shm", "tcp", "http", 0, (*Sample).rate, 1.5, 0, false},
	{"shm, gRPC unary", "TCP", "shm", "tcp", "grpc", 0, (*Sample).rate, 1.3, 0, false},
	{"rdma busy, 64 B ping-pong, time (p50)", "ib_send_lat", "rdma-busy", "ib_send", "ping-pong", 64, (*Sample).p50, 2, 1.3, true},
	{"rdma busy, 64 B ping-pong, time (p50)", "ib_write_lat", "rdma-busy", "ib_write", "ping-pong", 64, (*Sample).p50, 0, 0, true},
	{"rdma, 64 B ping-pong, time (mean)", "rsockets, parking", "rdma", "rsockets-blocking", "ping-pong", 64, (*Sample).mean, 1, 0, true},
	{"rdma, 64 B ping-pong, time (p50)", "TCP", "rdma", "tcp", "ping-pong", 64, (*Sample).p50, 0.25, 0, true},
	{"rdma, 64 KiB stream", "ib_write_bw", "rdma", "ib_write", "stream", 64 << 10, (*Sample).bandwidth, 0.75, 0.95, false},
	{"rdma, 1 MiB stream", "ib_write_bw", "rdma", "ib_write", "stream", 1 << 20, (*Sample).bandwidth, 0.75, 0.95, false},
	{"rdma, 64 KiB stream", "rsockets", "rdma", "rsockets", "stream", 64 << 10, (*Sample).bandwidth, 1.1, 0, false},
	{"rdma, 1 MiB stream", "rsockets", "rdma", "rsockets", "stream", 1 << 20, (*Sample).bandwidth, 1.1, 0, false},
	{"rdma, 64 B stream, messages/s", "rsockets", "rdma", "rsockets", "stream", 64, (*Sample).rate, 4, 10, false},
}

func (r *Report) figures() []Figure {
	var figures []Figure
	for _, x := range rules {
		figures = append(figures, r.compare(x))
	}
	figures = append(figures, r.libraryFigure())
	for _, key := range []string{"shm", "rdma"} {
		figures = append(figures, r.allocationFigure(key))
	}
	figures = append(figures, r.libraryAllocations())
	for _, key := range []string{"shm", "rdma"} {
		figures = append(figures, r.idleFigures(key)...)
	}
	return figures
}

func (x rule) targetText() string {
	least, sign := "≥", "×"
	if x.atMost {
		least = "≤"
	}
	if x.target == 0 {
		return "–"
	}
	text := fmt.Sprintf("%s %g %s", least, x.target, sign)
	if x.goal != 0 {
		text += fmt.Sprintf(" (goal %g %s)", x.goal, sign)
	}
	return text
}

func (r *Report) compare(x rule) Figure {
	f := Figure{What: x.what, Against: x.against, Target: x.targetText()}
	a := r.find(Cell{x.subject, x.workload, x.size, 1})
	b := r.find(Cell{x.other, x.workload, x.size, 1})
	for _, side := range []struct {
		key string
		*Result
	}{{x.subject, a}, {x.other, b}} {
		if side.Result == nil {
			f.Verdict = notMeasured + r.whyNot(side.key)
			return f
		}
	}
	for i := range a.Rounds {
		if a.Rounds[i] == nil || b.Rounds[i] == nil {
			continue
		}
		if ratio := x.metric(a.Rounds[i]) / x.metric(b.Rounds[i]); known(ratio) != 0 {
			f.Ratios = append(f.Ratios, ratio)
		}
	}
	f.judge(x.target, x.atMost)
	if len(f.Ratios) == 0 {
		f.Verdict = notMeasured + a.Error + b.Error
	}
	return f
}

// whyNot says why a peer has no results.
func (r *Report) whyNot(key string) string {
	for _, p := range r.Peers {
		if p.Key == key && p.Unavailable != "" {
			return p.Name + ": " + p.Unavailable
		}
		if p.Key == key {
			return "left out of this run"
		}
	}
	if slices.Contains(rdmaPeers, key) {
		return "wants an RDMA device (-rdma)"
	}
	return "wants a run on one host, without -rdma"
}

// judge takes the median of the ratios and holds it against the target.
func (f *Figure) judge(target float64, atMost bool) {
	f.Value = known(median(f.Ratios))
	switch {
	case target == 0:
		f.Verdict = noTarget
	case atMost == (f.Value <= target) || f.Value == target:
		f.Verdict = met
	default:
		f.Verdict = notMet
	}
}

func (r *Report) libraryFigure() Figure {
	target := 4.0
	if r.Machine.Device != "" {
		target = 0 // an emulated machine may be under the device, and weighs Go and C differently
	}
	f := Figure{
		What:    "Write + Read of 64 B through rconn, time",
		Against: "bare cgo crossing",
		Target:  rule{target: target, atMost: true}.targetText(),
		Verdict: notMeasured + "left out of this run",
	}
	if r.Library == nil {
		return f
	}
	if r.Library.Error != "" {
		f.Verdict = notMeasured + r.Library.Error
		return f
	}
	for _, x := range r.Library.Rounds {
		f.Ratios = append(f.Ratios, x.WriteRead/x.CgoCrossing)
	}
	f.judge(target, true)
	return f
}

func newAllocationFigure(fabric string) Figure {
	return Figure{
		What:    "Read and Write over " + fabric + ", steady state",
		Against: "allocations of a message",
		Target:  "0",
		Verdict: notMeasured + "left out of this run",
	}
}

func (f *Figure) judgeAllocations() {
	f.Verdict = met
	if f.Value >= noAllocation {
		f.Verdict = notMet
	}
}

// allocationFigure is that of the cell that allocates most.
func (r *Report) allocationFigure(key string) Figure {
	f := newAllocationFigure(key)
	most := math.Inf(-1)
	for _, x := range r.Results {
		w, err := findWorkload(x.Workload)
		if err == nil && w.sized && x.Peer == key && x.Median.Rounds > 0 && perMessage(x) {
			most = max(most, x.Median.Allocs)
		}
	}
	if math.IsInf(most, 0) {
		f.Verdict = notMeasured + r.whyNot(key)
		return f
	}
	f.Value = most
	f.judgeAllocations()
	return f
}

// perMessage says whether a cell had so many messages in a round that what the
// runtime and the set-up of the round allocate is nothing in comparison.
func perMessage(x *Result) bool {
	for _, s := range x.Rounds {
		if s != nil && s.Ops < 100*overheadAllocations {
			return false
		}
	}
	return true
}

// overheadAllocations is about what a round itself allocates, mostly for the
// two calls that ask the server what it has used.
const overheadAllocations = 200

func (r *Report) libraryAllocations() Figure {
	f := newAllocationFigure("direct")
	if r.Library == nil || len(r.Library.Rounds) == 0 {
		return f
	}
	var allocs []float64
	for _, x := range r.Library.Rounds {
		allocs = append(allocs, x.Allocs)
	}
	f.Value = median(allocs)
	f.judgeAllocations()
	return f
}

// idleOverhead is what a connection may hold beyond its rings and queues.
const idleOverhead = 16 << 10

// idleFigures are of the most connections that were made.
func (r *Report) idleFigures(key string) []Figure {
	memory := Figure{
		What:    "idle " + key + " connection, beyond rings and queues",
		Against: "bytes in the Go heap and stacks of one process",
		Target:  fmt.Sprintf("≤ %d", idleOverhead),
		Verdict: notMeasured + r.whyNot(key),
	}
	goroutines := Figure{
		What:    "idle " + key + " connection",
		Against: "goroutines",
		Target:  "≤ 1",
		Verdict: memory.Verdict,
	}
	for _, x := range r.Idle {
		if x.Peer != key {
			continue
		}
		if x.Error != "" {
			memory.Verdict, goroutines.Verdict = notMeasured+x.Error, notMeasured+x.Error
			continue
		}
		// The dialing side: the server of this program has a goroutine of its
		// own for each connection at most.
		memory.Value, goroutines.Value = x.Client.Go, x.Client.Goroutines
		memory.Verdict, goroutines.Verdict = notMet, notMet
		if x.Client.Go <= idleOverhead {
			memory.Verdict = met
		}
		if x.Client.Goroutines < 1.1 { // others come and go
			goroutines.Verdict = met
		}
	}
	return []Figure{memory, goroutines}
}
