package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/rpc"
	"os/exec"
	"slices"
	"time"

	"github.com/ringnet/ringnet/internal/perf"
)

// bench is the client of a server.
type bench struct {
	options
	server *rpc.Client
	host   string // where the server listens for peers
	device string // this side's RDMA device
	report *Report
	runner perf.Runner
	counts map[perf.Cell]int         // of programs: how many messages take about a slice
	starts map[perf.Cell]perf.Sample // of programs: a run with few messages, for the cost of the start
	port   int                       // the last that a program listened on
	others strangers
	show   *perf.Progress
}

// cells are what to measure. Those that differ in the peer alone are neighbours, and
// strangers remain for many cells.
func (b *bench) cells() (cells []perf.Cell) {
	for _, strangers := range b.busy {
		for _, key := range b.workloads {
			w, _ := findWorkload(key)
			for _, at := range b.points(w) {
				for _, info := range b.report.Peers {
					p, _ := findPeer(info.Key)
					if info.Unavailable == "" && p.does(w, at.conns) {
						cells = append(cells, perf.Cell{Peer: p.key, Workload: key, Size: at.size, Conns: at.conns, Busy: strangers})
					}
				}
			}
		}
	}
	return cells
}

// point is with what a workload is measured.
type point struct{ conns, size int }

func (b *bench) points(w *workload) (points []point) {
	if b.busyHost && w.busy != nil {
		return w.busy
	}
	sizes := b.sizes
	if !w.Sized {
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
	if p.only != nil && !slices.Contains(p.only, w.Key) {
		return false
	}
	if p.beside != nil {
		return p.beside.peer.does(w, conns)
	}
	if conns > 1 && (p.single || w.alone) {
		return false
	}
	if p.dial != nil {
		return !p.single || w.Sized
	}
	t, ok := p.tools[w.Key]
	return ok && (conns == 1 || t.many)
}

// run measures everything.
func (b *bench) run() error {
	b.tryPeers()
	err := b.report.Measure(context.Background(), b.cells(), b.measure, b.show, b.save)
	if err := errors.Join(err, b.others.be(0)); err != nil {
		return err
	}
	b.measureIdle()
	if b.library {
		b.show.Note("the library's own share, and a bare cgo crossing")
		b.report.Library = measureLibrary(b.rounds, b.slice)
	}
	return nil
}

// save writes the results so far, if there is a folder for them.
func (b *bench) save() {
	b.report.finish()
	if b.out == "" {
		return
	}
	if err := b.report.write(b.out); err != nil {
		b.show.Note("%v", err)
	}
}

// tryPeers finds out which peers can be measured here.
func (b *bench) tryPeers() {
	for _, key := range b.peers {
		p, _ := findPeer(key)
		info := perf.Peer{Key: key, Name: p.name}
		if err := b.try(p); err != nil {
			info.Unavailable = err.Error()
			b.show.Note("%s is not available: %v", p.name, err)
		}
		b.report.Peers = append(b.report.Peers, info)
	}
}

func (b *bench) try(p *peer) error {
	for key, t := range p.tools {
		if _, err := exec.LookPath(t.program); err != nil {
			return fmt.Errorf("%s is not installed (Debian: %s)", t.program, t.pkg)
		}
		_, err := b.runToolWell(perf.Cell{Peer: p.key, Workload: key, Size: 64, Conns: 1}, firstCount)
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
	return connectOnce(perf.Client{Context: ctx, Dial: p.dialAt(service.Address)})
}

func (b *bench) listen(p *peer, protocol string) (Listening, error) {
	var l Listening
	err := b.server.Call("Server.Listen", Service{p.key, b.host, protocol}, &l)
	return l, err
}

func (b *bench) closeService(l Listening) {
	if err := b.server.Call("Server.Close", l.ID, new(struct{})); err != nil {
		b.show.Note("closing a service: %v", err)
	}
}

// measure is one round of a cell.
func (b *bench) measure(c perf.Cell) (perf.Sample, error) {
	p, err := findPeer(c.Peer)
	if err != nil {
		return perf.Sample{}, err
	}
	if err := b.others.be(c.Busy); err != nil {
		return perf.Sample{}, err
	}
	if own := cmp.Or(p.beside, p.fresh); own != nil {
		return own.measure(b, c)
	}
	if p.dial == nil {
		return b.measureTool(c)
	}
	w, err := findWorkload(c.Workload)
	if err != nil {
		return perf.Sample{}, err
	}
	service, err := b.listen(p, w.protocol)
	if err != nil {
		return perf.Sample{}, err
	}
	defer b.closeService(service)
	return b.runner.Measure(context.Background(), c, &w.Workload, p.dialAt(service.Address))
}

// usages returns what both processes have used so far; if they are one, nothing as the server's.
func (b *bench) usages() (client, server perf.Usage, err error) {
	if b.oneProcess {
		return perf.OwnUsage(), server, nil
	}
	err = b.server.Call("Server.Usage", struct{}{}, &server)
	return perf.OwnUsage(), server, err
}

// How many messages a connection of a program sends: at first, at least (perftest's own
// minimum) and at most.
const (
	firstCount = 20
	minCount   = 5
	maxCount   = 1 << 20
)

func (b *bench) measureTool(c perf.Cell) (perf.Sample, error) {
	if b.counts[c] == 0 {
		s, err := b.runToolWell(c, firstCount)
		if err != nil {
			return perf.Sample{}, err
		}
		b.counts[c], b.starts[c] = b.toolCount(s), s
	}
	s, err := b.runToolWell(c, b.counts[c])
	if err != nil {
		return perf.Sample{}, err
	}
	b.counts[c] = b.toolCount(s)
	withoutStart(&s, b.starts[c])
	return s, nil
}

// withoutStart subtracts, from a program's processor time, the time before and after its
// messages. It estimates that from a run with few messages.
func withoutStart(s *perf.Sample, few perf.Sample) {
	if s.Ops <= few.Ops {
		s.CPU = 0
		return
	}
	s.CPU = max(0, s.CPU-few.CPU) * float64(s.Ops) / float64(s.Ops-few.Ops)
}

// runToolWell runs a program again while its result is not credible, up to three times.
func (b *bench) runToolWell(c perf.Cell, count int) (s perf.Sample, err error) {
	for range 3 {
		if s, err = b.runTool(b.toolRun(c, count)); !errors.Is(err, errIncredible) {
			break
		}
	}
	return s, err
}

// toolCount estimates from a sample how many messages take about a slice.
func (b *bench) toolCount(s perf.Sample) int {
	n := float64(s.Ops) / s.Seconds * b.slice.Seconds()
	return int(min(max(n, minCount), maxCount))
}

func (b *bench) toolRun(c perf.Cell, count int) ToolRun {
	b.port++
	return ToolRun{
		Peer: c.Peer, Workload: c.Workload, Address: b.host, Device: b.device, Port: b.port,
		Size: c.Size, Conns: c.Conns, Count: max(count/c.Conns, minCount),
	}
}
