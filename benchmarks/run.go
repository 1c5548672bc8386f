package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/rpc"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// bench is the client of a server.
type bench struct {
	options
	server *rpc.Client
	host   string // where the server listens for peers
	device string // RDMA device at home
	report *Report
	counts map[Cell]int    // operations of a worker that took about a slice
	starts map[Cell]Sample // of programs: a run that is hardly more than their start
	port   int             // the last that a program listened on
	show   *progress
}

// Cell is one thing that is measured in every round.
type Cell struct {
	Peer     string
	Workload string
	Size     int // of messages, in bytes; 0 where the workload has no sizes
	Conns    int
}

// cellTimeout ends a cell in which everybody waits.
const cellTimeout = 2 * time.Minute

// cells are what is to be measured, peers next to one another.
func (b *bench) cells() []Cell {
	var cells []Cell
	for _, key := range b.workloads {
		w, _ := findWorkload(key)
		for _, at := range b.points(w) {
			for _, info := range b.report.Peers {
				p, _ := findPeer(info.Key)
				if info.Unavailable == "" && p.does(w, at.conns) {
					cells = append(cells, Cell{p.key, key, at.size, at.conns})
				}
			}
		}
	}
	return cells
}

// point is where a workload is measured.
type point struct{ conns, size int }

func (b *bench) points(w *workload) (points []point) {
	sizes := b.sizes
	if !w.sized {
		sizes = []int{0}
	}
	conns := w.conns
	if b.onDevice {
		conns = w.onDevice
	}
	if len(b.conns) > 0 && len(conns) > 0 {
		conns = b.conns
	}
	for _, n := range conns {
		for _, size := range sizes {
			points = append(points, point{n, size})
		}
	}
	if len(b.conns) == 0 && !b.onDevice && slices.Contains(sizes, bulkBytes) {
		for _, n := range w.many {
			points = append(points, point{n, bulkBytes})
		}
	}
	return points
}

func (p *peer) does(w *workload, conns int) bool {
	if p.only != nil && !slices.Contains(p.only, w.key) {
		return false
	}
	if p.beside != nil {
		return p.beside.peer.does(w, conns)
	}
	if conns > 1 && (p.single || w.alone) {
		return false
	}
	if p.dial != nil {
		return !p.single || w.sized
	}
	t, ok := p.tools[w.key]
	return ok && (conns == 1 || t.many)
}

// run measures everything.
func (b *bench) run() {
	b.tryPeers()
	results := make(map[Cell]*Result)
	cells := b.cells()
	for _, c := range cells {
		results[c] = &Result{Cell: c, Rounds: make([]*Sample, b.rounds)}
		b.report.Results = append(b.report.Results, results[c])
	}
	for round := range b.rounds {
		for i, c := range cells {
			r := results[c]
			if r.failures == maxFailures {
				continue
			}
			s, err := b.measure(c)
			if err != nil {
				r.failures++
				r.Error = err.Error()
				b.show.failed(c, err)
				continue
			}
			r.Rounds[round] = &s
			b.show.measured(round, b.rounds, i, len(cells), c, &s)
		}
		b.save() // a long run that is cut short has not been in vain
	}
	b.measureIdle()
	if b.library {
		b.show.note("the library's own share, and a bare cgo crossing")
		b.report.Library = measureLibrary(b.rounds, b.slice)
	}
}

// save writes what has been measured so far, if it is to be written at all.
func (b *bench) save() {
	b.report.finish()
	if b.out == "" {
		return
	}
	if err := b.report.write(b.out); err != nil {
		b.show.note("%v", err)
	}
}

// maxFailures is after how many failures a cell is not tried again.
const maxFailures = 3

// tryPeers finds out who is there.
func (b *bench) tryPeers() {
	for _, key := range b.peers {
		p, _ := findPeer(key)
		info := PeerInfo{Key: key, Name: p.name}
		if err := b.try(p); err != nil {
			info.Unavailable = err.Error()
			b.show.note("%s is not available: %v", p.name, err)
		}
		b.report.Peers = append(b.report.Peers, info)
	}
}

func (b *bench) try(p *peer) error {
	for key, t := range p.tools {
		if _, err := exec.LookPath(t.program); err != nil {
			return fmt.Errorf("%s is not installed (Debian: %s)", t.program, t.pkg)
		}
		_, err := b.runToolWell(Cell{p.key, key, 64, 1}, firstCount)
		if err != nil {
			return err
		}
	}
	if p.dial == nil {
		return nil
	}
	service, err := b.listen(p, "messages")
	if err != nil {
		return err
	}
	defer b.closeService(service)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return connectOnce(client{ctx: ctx, dial: p.dial, address: service.Address})
}

func (b *bench) listen(p *peer, protocol string) (Listening, error) {
	var l Listening
	err := b.server.Call("Server.Listen", Service{p.key, b.host, protocol}, &l)
	return l, err
}

func (b *bench) closeService(l Listening) {
	if err := b.server.Call("Server.Close", l.ID, new(struct{})); err != nil {
		b.show.note("closing a service: %v", err)
	}
}

// measure is one round of a cell.
func (b *bench) measure(c Cell) (Sample, error) {
	p, err := findPeer(c.Peer)
	if err != nil {
		return Sample{}, err
	}
	if own := cmp.Or(p.beside, p.fresh); own != nil {
		return own.measure(b, c)
	}
	if p.dial == nil {
		return b.measureTool(c)
	}
	w, err := findWorkload(c.Workload)
	if err != nil {
		return Sample{}, err
	}
	service, err := b.listen(p, w.protocol)
	if err != nil {
		return Sample{}, err
	}
	defer b.closeService(service)
	ctx, cancel := context.WithTimeout(context.Background(), cellTimeout)
	defer cancel()
	s, err := w.open(client{ctx, p.dial, service.Address, c.Conns, c.Size})
	if err != nil {
		return Sample{}, err
	}
	once := sync.OnceFunc(s.close)
	defer once()
	defer context.AfterFunc(ctx, once)() // releases whoever waits

	n, err := b.calibrate(c, w, s)
	if err != nil {
		return Sample{}, err
	}
	return b.sample(c, s, n)
}

// calibrate warms up and finds out how many operations of a worker take a slice.
func (b *bench) calibrate(c Cell, w *workload, s *session) (int, error) {
	if w.count > 0 {
		return w.count, nil
	}
	n := max(1, b.counts[c]/8)
	most := maxOperations
	if w.limit > 0 {
		most = w.limit / c.Conns
	}
	fastest, repeats := time.Duration(math.MaxInt64), 0
	for {
		n = min(n, most)
		elapsed, _, err := phase(s, c.Conns, n)
		if err != nil {
			return 0, err
		}
		fastest = min(fastest, elapsed)
		if elapsed >= b.slice/8 && n < fewOperations && repeats < 3 {
			repeats++ // perhaps something else had the processor
			continue
		}
		if fastest >= b.slice/8 || n == most {
			n = int(float64(n) * float64(b.slice) / float64(fastest))
			n = min(max(n, b.counts[c]/2, 1), most)
			b.counts[c] = n
			return n, nil
		}
		// As package testing does: towards the goal, but not too fast.
		aim := int(float64(n) * float64(b.slice/6) / float64(max(fastest, 1)))
		n = min(max(aim, n+1), 100*n)
		fastest = math.MaxInt64
	}
}

// fewOperations may all have been held up by one and the same thing.
const fewOperations = 16

// maxOperations bounds what a worker keeps the times of.
const maxOperations = 1 << 24

// phase has each worker do n operations and returns the time that all took and,
// where they are timed, the time of each.
func phase(s *session, workers, n int) (time.Duration, []time.Duration, error) {
	var times []time.Duration
	if s.timed {
		times = make([]time.Duration, workers*n)
	}
	errs := make([]error, workers)
	var all sync.WaitGroup
	start := time.Now()
	for i := range workers {
		all.Go(func() {
			var own []time.Duration
			if times != nil {
				own = times[i*n : (i+1)*n]
			}
			errs[i] = s.run(i, n, own)
		})
	}
	all.Wait()
	return time.Since(start), times, errors.Join(errs...)
}

// sample is the phase that counts.
func (b *bench) sample(c Cell, s *session, n int) (Sample, error) {
	before, err := b.usage()
	if err != nil {
		return Sample{}, err
	}
	elapsed, times, err := phase(s, c.Conns, n)
	if err != nil {
		return Sample{}, err
	}
	after, err := b.usage()
	if err != nil {
		return Sample{}, err
	}
	out := Sample{Ops: n * c.Conns, Seconds: elapsed.Seconds(), CPU: after.CPU - before.CPU, LockWait: after.LockWait - before.LockWait}
	if s.failed != nil {
		if out.Failed, err = s.failed(); err != nil {
			b.show.note("%v: %d of %d failed, one of them: %v", c, out.Failed, out.Ops, err)
		}
		out.Ops -= out.Failed
	}
	out.Bytes = out.Ops * s.bytes
	allocs := float64(after.Mallocs-before.Mallocs) / float64(out.Ops)
	out.Allocs = &allocs
	if times != nil {
		out.latencies(times, s.half)
	}
	return out, nil
}

// usage is what both processes have used so far.
func (b *bench) usage() (Usage, error) {
	var server Usage
	if err := b.server.Call("Server.Usage", struct{}{}, &server); err != nil {
		return Usage{}, err
	}
	client := usage()
	return Usage{client.CPU + server.CPU, client.Mallocs + server.Mallocs, client.LockWait + server.LockWait}, nil
}

func (s *Sample) latencies(times []time.Duration, half bool) {
	slices.Sort(times)
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	scale := 1.0
	if half {
		scale = 0.5
	}
	s.P50 = scale * float64(times[len(times)/2])
	s.P90 = scale * float64(times[len(times)*90/100])
	s.P99 = scale * float64(times[len(times)*99/100])
	s.Mean = scale * float64(sum) / float64(len(times))
}

// How many messages a connection of a program sends: at first, at least (that of
// perftest) and at most.
const (
	firstCount = 20
	minCount   = 5
	maxCount   = 1 << 20
)

func (b *bench) measureTool(c Cell) (Sample, error) {
	if b.counts[c] == 0 {
		s, err := b.runToolWell(c, firstCount)
		if err != nil {
			return Sample{}, err
		}
		b.counts[c], b.starts[c] = b.toolCount(s), s
	}
	s, err := b.runToolWell(c, b.counts[c])
	if err != nil {
		return Sample{}, err
	}
	b.counts[c] = b.toolCount(s)
	s.withoutStart(b.starts[c])
	return s, nil
}

// withoutStart takes from a program's processor time what it spends before and
// after it measures, by a sample of few messages.
func (s *Sample) withoutStart(few Sample) {
	if s.Ops <= few.Ops {
		s.CPU = 0
		return
	}
	s.CPU = max(0, s.CPU-few.CPU) * float64(s.Ops) / float64(s.Ops-few.Ops)
}

// runToolWell runs a program until it says something credible.
func (b *bench) runToolWell(c Cell, count int) (s Sample, err error) {
	for range 3 {
		if s, err = b.runTool(b.toolRun(c, count)); !errors.Is(err, errIncredible) {
			break
		}
	}
	return s, err
}

// toolCount is how many messages take about a slice, by a sample.
func (b *bench) toolCount(s Sample) int {
	n := float64(s.Ops) / s.Seconds * b.slice.Seconds()
	return int(min(max(n, minCount), maxCount))
}

func (b *bench) toolRun(c Cell, count int) ToolRun {
	b.port++
	return ToolRun{
		Peer: c.Peer, Workload: c.Workload, Address: b.host, Device: b.device, Port: b.port,
		Size: c.Size, Conns: c.Conns, Count: max(count/c.Conns, minCount),
	}
}
