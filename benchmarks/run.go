package main

import (
	"cmp"
	"context"
	"errors"
	"net/rpc"
	"slices"
	"time"

	"github.com/ringnet/ringnet/internal/perf/report"
	"github.com/ringnet/ringnet/internal/perf/workload"
)

// bench is the client of a server.
type bench struct {
	options
	server *rpc.Client
	host   string // where the server listens for peers
	device string // this side's RDMA device
	report *Report
	runner workload.Runner
	counts map[report.Cell]int           // of programs: how many messages take about a slice
	starts map[report.Cell]report.Sample // of programs: a run with few messages, for the cost of the start
	port   int                           // the last that a program listened on
	others strangers
	show   *report.Progress
}

// cells are what to measure. Those that differ in the peer alone are neighbours, and
// strangers remain for many cells.
func (b *bench) cells() (cells []report.Cell) {
	for _, strangers := range b.busy {
		for _, key := range b.workloads {
			w, _ := findWorkload(key)
			for _, at := range b.points(w) {
				for _, info := range b.report.Peers {
					p, _ := findPeer(info.Key)
					if info.Unavailable == "" && p.does(w, at.conns) {
						cells = append(cells, report.Cell{Peer: p.key, Workload: key, Size: at.size, Conns: at.conns, Busy: strangers})
					}
				}
			}
		}
	}
	return cells
}

// point is with what a workload is measured.
type point struct{ conns, size int }

func (b *bench) points(w *benchmark) (points []point) {
	if b.busyHost && w.busy != nil {
		return w.busy
	}
	sizes := b.sizes
	if !w.Sized {
		sizes = []int{0}
	}
	conns := w.conns
	switch {
	case b.onDevice && b.oneProcess:
		conns = w.card.conns
		if b.usualSizes && w.card.sizes != nil {
			sizes = w.card.sizes
		}
	case b.onDevice:
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

func (p *peer) does(w *benchmark, conns int) bool {
	if p.beside != nil {
		return p.beside.peer.does(w, conns)
	}
	if conns > 1 && (p.single || w.alone) || w.card.ours && p.ours == nil && p.tools == nil {
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
	return nil
}

// save writes the results so far, if there is a folder for them.
func (b *bench) save() {
	b.report.Summarise()
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
		info := report.Peer{Key: key, Name: p.name}
		if err := b.try(p); err != nil {
			info.Unavailable = err.Error()
			b.show.Note("%s is not available: %v", p.name, err)
		}
		b.report.Peers = append(b.report.Peers, info)
	}
}

func (b *bench) try(p *peer) error {
	if b.onDevice && b.oneProcess {
		return nil // the first round finds out, with nothing before it in the process
	}
	for key, t := range p.tools {
		if err := t.there(); err != nil {
			return err
		}
		if t.alone {
			if b.twoHosts {
				return errors.New("it is one process, and so has one host; perftest is in C, too")
			}
			continue
		}
		_, err := b.runToolWell(report.Cell{Peer: p.key, Workload: key, Size: 64, Conns: 1}, firstCount)
		if err != nil {
			return err
		}
	}
	if p.dial == nil {
		return nil
	}
	address, err := b.listen(p, "messages")
	if err != nil {
		return err
	}
	defer b.closeService(address)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return workload.Client{Context: ctx, Dial: p.dialAt(address)}.ConnectOnce()
}

// listen starts a service of the server, and returns its address.
func (b *bench) listen(p *peer, protocol string) (address string, err error) {
	err = b.server.Call("Server.Listen", Service{p.key, b.host, protocol}, &address)
	return address, err
}

func (b *bench) closeService(address string) {
	if err := b.server.Call("Server.Close", address, new(struct{})); err != nil {
		b.show.Note("closing a service: %v", err)
	}
}

// measure is one round of a cell.
func (b *bench) measure(c report.Cell) (report.Sample, error) {
	p, err := findPeer(c.Peer)
	if err != nil {
		return report.Sample{}, err
	}
	if err := b.others.be(c.Busy); err != nil {
		return report.Sample{}, err
	}
	if own := cmp.Or(p.beside, p.fresh); own != nil {
		return own.measure(b, c)
	}
	if p.dial == nil {
		return b.measureTool(c)
	}
	w, err := findWorkload(c.Workload)
	if err != nil {
		return report.Sample{}, err
	}
	address, err := b.listen(p, w.protocol)
	if err != nil {
		return report.Sample{}, err
	}
	defer b.closeService(address)
	return b.runner.Measure(context.Background(), c, &w.Workload, p.dialAt(address))
}

// usages returns what both processes have used so far; if they are one, nothing as the server's.
func (b *bench) usages() (client, server workload.Usage, err error) {
	if b.oneProcess {
		return workload.OwnUsage(), server, nil
	}
	err = b.server.Call("Server.Usage", struct{}{}, &server)
	return workload.OwnUsage(), server, err
}

// How many messages a connection of a program sends: at first, at least (perftest's own
// minimum) and at most.
const (
	firstCount = 20
	minCount   = 5
	maxCount   = 1 << 20
)

func (b *bench) measureTool(c report.Cell) (report.Sample, error) {
	if p, err := findPeer(c.Peer); err == nil && p.tools[c.Workload].alone {
		return b.runTool(b.toolRun(c, 0))
	}
	if b.counts[c] == 0 {
		s, err := b.runToolWell(c, firstCount)
		if err != nil {
			return report.Sample{}, err
		}
		b.counts[c], b.starts[c] = b.toolCount(s), s
	}
	s, err := b.runToolWell(c, b.counts[c])
	if err != nil {
		return report.Sample{}, err
	}
	b.counts[c] = b.toolCount(s)
	withoutStart(&s, b.starts[c])
	return s, nil
}

// withoutStart subtracts, from a program's processor time, the time before and after its
// messages. It estimates that from a run with few messages.
func withoutStart(s *report.Sample, few report.Sample) {
	if s.Ops <= few.Ops {
		s.CPU = 0
		return
	}
	s.CPU = max(0, s.CPU-few.CPU) * float64(s.Ops) / float64(s.Ops-few.Ops)
}

// runToolWell runs a program again while its result is not credible, up to three times.
func (b *bench) runToolWell(c report.Cell, count int) (s report.Sample, err error) {
	for range 3 {
		if s, err = b.runTool(b.toolRun(c, count)); !errors.Is(err, errIncredible) {
			break
		}
	}
	return s, err
}

// toolCount estimates from a sample how many messages take about a slice.
func (b *bench) toolCount(s report.Sample) int {
	n := float64(s.Ops) / s.Seconds * b.slice.Seconds()
	return int(min(max(n, minCount), maxCount))
}

func (b *bench) toolRun(c report.Cell, count int) ToolRun {
	b.port++
	return ToolRun{
		Peer: c.Peer, Workload: c.Workload, Address: b.host, Device: b.device, Port: b.port,
		Size: c.Size, Conns: c.Conns, Count: max(count/c.Conns, minCount), Slice: b.slice,
	}
}
