package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/ringnet/ringnet/internal/perf"
)

// Figure is a comparison for which the project has a target.
type Figure struct {
	What    string
	Against string
	Target  string
	Ratios  []float64 `json:",omitempty"` // of the rounds
	Value   float64   // their median, or the one value there is
	Verdict string    // met, not met, or why that is not known
}

const (
	met          = "met"
	notMet       = "not met"
	notMeasured  = "not measured: "
	wants        = "wants "
	leftOut      = "left out of this run"
	noTarget     = "for information"
	noAllocation = 0.005 // less is 0 in two decimals: runtime and report allocate now and then
)

// rule is a figure calculated from cells: the ratio of the subject's metric to that of the
// best of the others. Without others it is the metric itself.
type rule struct {
	what, against string
	subject       string   // a peer
	others        []string // peers
	workload      string
	size          int
	metric        func(*perf.Sample) float64
	target, goal  float64 // 0 for none
	atMost        bool
	conns         []int // a figure for each; nil for one connection
}

var (
	tcp  = []string{"tcp"}
	unix = []string{"unix"}
	both = []string{"tcp", "unix"}
)

var rules = []rule{
	{"shm, 64 B ping-pong, round trips/s", "TCP", "shm", tcp, "ping-pong", 64, (*perf.Sample).PerSecond, 4, 0, false, nil},
	{"shm, 64 B ping-pong, round trips/s", "Unix socket", "shm", unix, "ping-pong", 64, (*perf.Sample).PerSecond, 2.5, 0, false, nil},
	{"shm, 64 B stream, messages/s", "TCP", "shm", tcp, "stream", 64, (*perf.Sample).PerSecond, 12, 20, false, nil},
	{"shm, 64 KiB stream", "TCP", "shm", tcp, "stream", bulkBytes, (*perf.Sample).PerSecond, 2.5, 0, false, nil},
	{"shm, 1 MiB stream", "TCP", "shm", tcp, "stream", 1 << 20, (*perf.Sample).PerSecond, 2, 0, false, nil},
	{"shm, 64 KiB stream", "Unix socket", "shm", unix, "stream", bulkBytes, (*perf.Sample).PerSecond, 1.25, 0, false, nil},
	{"shm, 1 MiB stream", "Unix socket", "shm", unix, "stream", 1 << 20, (*perf.Sample).PerSecond, 1.25, 0, false, nil},
	{"shm, 64 KiB stream", "Unix socket", "shm", unix, "stream", bulkBytes, (*perf.Sample).PerSecond, 1.5, 2.5, false, []int{16, 64}},
	{"shm, request and reply of 1 KiB with 10 µs of work", "TCP", "shm", tcp, "work", 0, (*perf.Sample).PerSecond, 0, 0, false, []int{4, 16, 64, 256}},
	{"shm, request and reply of 1 KiB with 10 µs of work", "Unix socket", "shm", unix, "work", 0, (*perf.Sample).PerSecond, 1.2, 1.6, false, []int{4, 16, 64, 256}},
	{"shm, dial, one byte there and back, close", "TCP", "shm", tcp, "connect", 0, (*perf.Sample).PerSecond, 1, 2, false, []int{1, 16}},
	{"shm, dial, one byte there and back, close", "Unix socket", "shm", unix, "connect", 0, (*perf.Sample).PerSecond, 0.6, 1, false, []int{1, 16}},
	{"shm, net/http GET of 1 KiB", "TCP", "shm", tcp, "http", 0, (*perf.Sample).PerSecond, 1.5, 0, false, nil},
	{"shm, net/http GET of 1 KiB", "TCP", "shm", tcp, "http", 0, (*perf.Sample).PerSecond, 1.25, 2, false, []int{4, 16, 64}},
	{"shm, net/http GET of 1 KiB", "Unix socket", "shm", unix, "http", 0, (*perf.Sample).PerSecond, 1.05, 1.5, false, []int{4, 16, 64}},
	{"shm, net/http GET of 1 KiB, p99", "better of TCP and Unix", "shm", both, "http", 0, p99, 1.2, 0.7, true, []int{16, 64}},
	{"shm, net/http GET of 1 KiB, processor time", "better of TCP and Unix", "shm", both, "http", 0, (*perf.Sample).CPUPerOp, 1, 0.7, true, []int{16, 64}},
	{"shm, gRPC unary", "TCP", "shm", tcp, "grpc", 0, (*perf.Sample).PerSecond, 1.3, 1.5, false, nil},
	{"shm, gRPC unary", "TCP", "shm", tcp, "grpc", 0, (*perf.Sample).PerSecond, 1.1, 1.5, false, []int{4, 16}},
	{"TCP echo with GOMAXPROCS=1 beside two busy shm connections, time (p50)", "BusyPoll -1", "shm", []string{"shm-parking"}, "bystander", 0, p50, 2, 1, true, nil},
	{"shm, Write to a full ring, after its reader took that and computes, ms (p90)", "", "shm", nil, "take", 0, inMillis(p90), 1, 0, true, nil},
	{"rdma busy, 64 B ping-pong, time (p50)", "ib_send_lat", "rdma-busy", []string{"ib_send"}, "ping-pong", 64, p50, 2, 1.3, true, nil},
	{"rdma busy, 64 B ping-pong, time (p50)", "ib_write_lat", "rdma-busy", []string{"ib_write"}, "ping-pong", 64, p50, 0, 0, true, nil},
	{"rdma, 64 B ping-pong, time (mean)", "rsockets, parking", "rdma", []string{"rsockets-blocking"}, "ping-pong", 64, mean, 1, 0, true, nil},
	{"rdma, 64 B ping-pong, time (p50)", "TCP", "rdma", tcp, "ping-pong", 64, p50, 0.25, 0, true, nil},
	{"rdma, 64 KiB stream", "ib_write_bw", "rdma", []string{"ib_write"}, "stream", bulkBytes, (*perf.Sample).BytesPerSec, 0.75, 0.95, false, nil},
	{"rdma, 1 MiB stream", "ib_write_bw", "rdma", []string{"ib_write"}, "stream", 1 << 20, (*perf.Sample).BytesPerSec, 0.75, 0.95, false, nil},
	{"rdma, 64 KiB stream", "rsockets", "rdma", []string{"rsockets"}, "stream", bulkBytes, (*perf.Sample).BytesPerSec, 1.1, 0, false, nil},
	{"rdma, 1 MiB stream", "rsockets", "rdma", []string{"rsockets"}, "stream", 1 << 20, (*perf.Sample).BytesPerSec, 1.1, 0, false, nil},
	{"rdma, 64 B stream, messages/s", "rsockets", "rdma", []string{"rsockets"}, "stream", 64, (*perf.Sample).PerSecond, 4, 10, false, nil},
	{"rdma, dial, one byte there and back, close", "TCP", "rdma", tcp, "connect", 0, (*perf.Sample).PerSecond, 0.5, 1, false, []int{1, 16}},
	{"rdma, 64 B ping-pong, round trips/s", "TCP", "rdma", tcp, "ping-pong", 64, (*perf.Sample).PerSecond, 0, 1, false, []int{16}},
	{"rdma, 64 B ping-pong, round trips/s", "rsockets", "rdma", []string{"rsocket"}, "ping-pong", 64, (*perf.Sample).PerSecond, 0, 0, false, []int{16}},
	{"rdma, request and reply of 1 KiB with 10 µs of work", "TCP", "rdma", tcp, "work", 0, (*perf.Sample).PerSecond, 0, 1, false, []int{16}},
	{"rdma, request and reply of 1 KiB with 10 µs of work", "rsockets", "rdma", []string{"rsocket"}, "work", 0, (*perf.Sample).PerSecond, 0, 0, false, []int{16}},
	{"rdma, net/http GET of 1 KiB", "TCP", "rdma", tcp, "http", 0, (*perf.Sample).PerSecond, 0, 1, false, []int{16}},
}

func p50(s *perf.Sample) float64  { return s.P50 }
func p90(s *perf.Sample) float64  { return s.P90 }
func p99(s *perf.Sample) float64  { return s.P99 }
func mean(s *perf.Sample) float64 { return s.Mean }

func inMillis(metric func(*perf.Sample) float64) func(*perf.Sample) float64 {
	return func(s *perf.Sample) float64 { return metric(s) / 1e6 }
}

func (r *Report) figures() []Figure {
	var figures []Figure
	for _, x := range rules {
		if x.conns == nil {
			figures = append(figures, r.compare(x, 1, 0))
		}
		for _, conns := range x.conns {
			figures = append(figures, r.compare(x, conns, 0))
		}
	}
	figures = append(figures, r.libraryFigure())
	for _, key := range []string{"shm", "rdma"} {
		figures = append(figures, r.allocationFigure(key))
	}
	figures = append(figures, r.libraryAllocations(), r.burstFigure("shm"), r.burstFigure("rdma"))
	for _, x := range idleRules {
		figures = append(figures, r.idleFigure(x))
	}
	return append(figures, r.besideFigures()...)
}

func targetText(target, goal float64, atMost bool, unit string) string {
	least := "≥"
	if atMost {
		least = "≤"
	}
	switch {
	case target == 0 && goal == 0:
		return "–"
	case target == 0:
		return fmt.Sprintf("goal %g%s", goal, unit)
	case goal == 0:
		return fmt.Sprintf("%s %g%s", least, target, unit)
	}
	return fmt.Sprintf("%s %g%s (goal %g%[3]s)", least, target, unit, goal)
}

func (r *Report) compare(x rule, conns, strangers int) Figure {
	unit := " ×"
	if x.others == nil {
		unit = ""
	}
	f := Figure{What: x.what, Against: x.against, Target: targetText(x.target, x.goal, x.atMost, unit)}
	if conns > 1 && len(x.conns) > 0 {
		f.What += fmt.Sprintf(", %d connections", conns)
	}
	var sides []*perf.Result // the subject first
	for _, key := range append([]string{x.subject}, x.others...) {
		side := r.Find(perf.Cell{Peer: key, Workload: x.workload, Size: x.size, Conns: conns, Busy: strangers})
		if side == nil {
			f.Verdict = notMeasured + r.whyNot(key)
			return f
		}
		sides = append(sides, side)
	}
	for round := range r.Rounds {
		if ratio := x.ratio(sides, round); perf.Known(ratio) && ratio != 0 {
			f.Ratios = append(f.Ratios, ratio)
		}
	}
	f.judge(x.target, x.atMost)
	if len(f.Ratios) == 0 {
		f.Verdict = notMeasured + sides[0].Error + sides[len(sides)-1].Error
	}
	return f
}

// ratio is that of the subject to the best of the others in a round, or NaN.
func (x rule) ratio(sides []*perf.Result, round int) float64 {
	var values []float64
	for _, side := range sides {
		if side.Rounds[round] == nil {
			return math.NaN()
		}
		values = append(values, x.metric(side.Rounds[round]))
	}
	subject, others := values[0], values[1:]
	switch {
	case len(others) == 0:
		return subject
	case x.atMost:
		return subject / slices.Min(others)
	}
	return subject / slices.Max(others)
}

// whyNot says why a peer has no results.
func (r *Report) whyNot(key string) string {
	for _, p := range r.Peers {
		if p.Key == key && p.Unavailable != "" {
			return p.Name + ": " + p.Unavailable
		}
		if p.Key == key {
			return leftOut
		}
	}
	if slices.Contains(rdmaPeers, key) {
		return wants + "an RDMA device (-rdma)"
	}
	return wants + "a run on one host, without -rdma"
}

// judge compares the median of the ratios with the target.
func (f *Figure) judge(target float64, atMost bool) {
	f.Value = perf.NewEstimate(f.Ratios).Median
	f.Verdict = verdict(f.Value, target, atMost)
}

// outside reports whether this run does not measure the figure.
func (f *Figure) outside() bool {
	return strings.HasPrefix(f.Verdict, notMeasured+wants) || f.Verdict == notMeasured+leftOut
}

func verdict(value, target float64, atMost bool) string {
	switch {
	case target == 0:
		return noTarget
	case atMost == (value <= target) || value == target:
		return met
	}
	return notMet
}

func (r *Report) libraryFigure() Figure {
	target := 4.0
	if r.Machine.Device != "" {
		target = 0 // an emulated machine may be under the device, and weighs Go and C differently
	}
	f := Figure{
		What:    "Write + Read of 64 B through rconn, time",
		Against: "bare cgo crossing",
		Target:  targetText(target, 0, true, " ×"),
		Verdict: notMeasured + leftOut,
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
		Verdict: notMeasured + leftOut,
	}
}

func (f *Figure) judgeAllocations() {
	f.Verdict = met
	if f.Value >= noAllocation {
		f.Verdict = notMet
	}
}

// allocationFigure is the allocations of the cell that allocates most.
func (r *Report) allocationFigure(key string) Figure {
	f := newAllocationFigure(key)
	most := math.Inf(-1)
	for _, x := range r.Results {
		w, err := findWorkload(x.Workload)
		if err == nil && w.Sized && x.Peer == key && x.Median.Rounds > 0 && perMessage(x) {
			most = max(most, x.Median.Allocs.Median)
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

// perMessage reports whether a cell had so many messages in a round that the allocations
// of the runtime and of the round's set-up do not matter.
func perMessage(x *perf.Result) bool {
	for _, s := range x.Rounds {
		if s != nil && s.Ops < 100*overheadAllocations {
			return false
		}
	}
	return true
}

// overheadAllocations is about how often a round itself allocates, mostly for the two calls
// that ask the server for its usage.
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
	f.Value = perf.NewEstimate(allocs).Median
	f.judgeAllocations()
	return f
}

// burstFigure is how many of the dials at once have failed, in all rounds.
func (r *Report) burstFigure(key string) Figure {
	f := Figure{What: key + ", dials at once", Against: "failed", Target: "0", Verdict: notMeasured + r.whyNot(key)}
	for _, x := range r.Results {
		if x.Peer != key || x.Workload != "burst" || x.Median.Rounds == 0 {
			continue
		}
		f.What = fmt.Sprintf("%s, %d dials at once", key, x.Conns)
		f.Value, f.Verdict = float64(x.Median.Failed), met
		if x.Median.Failed > 0 {
			f.Verdict = notMet
		}
	}
	return f
}

// idleRule is a figure of connections that are idle.
type idleRule struct {
	what, unit   string
	peer         string
	conns        int // 0 for the most that were made
	value        func(r *Report, x *Idle) float64
	target, goal float64
}

var idleRules = []idleRule{
	{"idle shm connection, Go heap and stacks of the dialing process", "KiB", "shm", 0, goMemory, 16, 0},
	{"idle shm connection", "goroutines of the dialing process", "shm", 0, goroutines, 1.1, 0}, // others come and go
	{"idle shm connection, both ends, of 1000", "KiB", "shm", 1000, bothEnds, 48, 16},
	{"shm, 10000 connections, both processes", "MiB", "shm", 10_000, bothProcesses, 600, 200},
	{"shm, 10000 connections, opened and used once", "time of TCP", "shm", 10_000, timeByTCP, 0, 1},
	{"shm, 10000 idle connections, processor time of both processes", "percent of wall time", "shm", 10_000, idlePercent, 1, 0},
	{"idle rdma connection, Go heap and stacks of the dialing process", "KiB", "rdma", 0, goMemory, 16, 0},
	{"idle rdma connection", "goroutines of the dialing process", "rdma", 0, goroutines, 1.1, 0},
	{"rdma, 1000 connections, queue pairs", "both ends", "rdma", 1000, queuePairs, 2, 0},
	{"rdma, 1000 connections, completion queues", "both ends", "rdma", 1000, completionQueues, 2, 0},
	{"rdma, 1000 connections, pinned", "MiB, the larger end", "rdma", 1000, pinned, 64, 0},
}

func goMemory(_ *Report, x *Idle) float64      { return x.Client.Go / (1 << 10) }
func goroutines(_ *Report, x *Idle) float64    { return x.Client.Goroutines }
func bothEnds(_ *Report, x *Idle) float64      { return (x.Client.Memory + x.Server.Memory) / (1 << 10) }
func bothProcesses(_ *Report, x *Idle) float64 { return float64(x.Memory) / (1 << 20) }
func idlePercent(_ *Report, x *Idle) float64   { return 100 * x.CPU }
func queuePairs(_ *Report, x *Idle) float64    { return float64(x.Objects.QueuePairs) }

func completionQueues(_ *Report, x *Idle) float64 { return float64(x.Objects.CompletionQueues) }

func pinned(_ *Report, x *Idle) float64 {
	return max(x.Client.Pinned, x.Server.Pinned) * float64(x.Conns) / (1 << 20)
}

func timeByTCP(r *Report, x *Idle) float64 {
	if tcp := r.findIdle("tcp", x.Conns); tcp != nil && tcp.Error == "" {
		return x.Seconds / tcp.Seconds
	}
	return math.NaN()
}

// findIdle returns what so many connections cost, or the most if conns is 0.
func (r *Report) findIdle(peer string, conns int) (found *Idle) {
	for i := range r.Idle {
		if x := &r.Idle[i]; x.Peer == peer && (conns == 0 || x.Conns == conns) {
			found = x
		}
	}
	return found
}

func (r *Report) idleFigure(rule idleRule) Figure {
	f := Figure{
		What: rule.what, Against: rule.unit,
		Target: targetText(rule.target, rule.goal, true, ""),
	}
	x := r.findIdle(rule.peer, rule.conns)
	switch {
	case x == nil:
		f.Verdict = notMeasured + r.whyNot(rule.peer)
	case x.Error != "":
		f.Verdict = notMeasured + x.Error
	default:
		f.Value = rule.value(r, x)
		f.Verdict = verdict(f.Value, rule.target, true)
	}
	return f
}
