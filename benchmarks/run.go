package main

import (
	"context"
	"net/rpc"
	"time"

	"github.com/ringnet/ringnet/internal/perf/report"
	"github.com/ringnet/ringnet/internal/perf/workload"
)

// bench is the client of a server.
type bench struct {
	*options
	ctx    context.Context
	server *rpc.Client
	report *Report
	runner workload.Runner
	tools  map[report.Cell]int // how many messages of a program take about a slice
	port   int                 // the last that a program listened on
	others strangers
	show   *report.Progress
}

// cells are what to measure. Those that differ in the peer alone are neighbours, and
// strangers remain for many cells.
func (b *bench) cells() (cells []report.Cell) {
	for _, strangers := range b.busy {
		for _, key := range b.workloads {
			w, _ := findWorkload(key)
			sizes := b.sizes
			if !w.Sized {
				sizes = []int{0}
			}
			for _, conns := range b.connsOf(w) {
				for _, size := range sizes {
					for _, info := range b.report.Peers {
						p, _ := findPeer(info.Key)
						if info.Unavailable == "" && p.does(w, conns) {
							cells = append(cells, report.Cell{Peer: p.key, Workload: key, Size: size, Conns: conns, Busy: strangers})
						}
					}
				}
			}
		}
	}
	return cells
}

// connsOf are with how many connections a workload is measured: nil if that is not done here.
func (b *bench) connsOf(w *benchmark) []int {
	conns := w.conns
	switch {
	case b.onDevice() && b.oneProcess:
		conns = w.card.conns
	case b.onDevice():
		conns = w.onDevice
	case b.tail:
		conns = w.tail
	}
	// On a card whose large messages do not arrive, a link tells only one connection's bytes.
	if len(b.conns) > 0 && len(conns) > 0 && (b.card == "" || w.card.dma != "free") {
		return b.conns
	}
	return conns
}

func (p *peer) does(w *benchmark, conns int) bool {
	if conns > 1 && w.alone || w.card.ours && p.ours == nil && p.tools == nil {
		return false
	}
	t, ok := p.tools[w.Key]
	return p.dial != nil || ok && (conns == 1 || t.many)
}

// run measures everything.
func (b *bench) run() error {
	b.report.Begin(b.rounds, b.slice)
	if b.onDevice() {
		b.report.Machine.Device = b.device
	}
	b.tryPeers()
	err := b.report.Measure(b.ctx, b.cells(), b.measure, b.show, b.save)
	_ = b.others.be(0)
	if err != nil {
		return err
	}
	b.measureIdle()
	return nil
}

// save writes the results so far, if there is a folder for them.
func (b *bench) save() {
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
	if b.onDevice() && b.oneProcess || p.as != "" {
		return nil // the first round finds out, with nothing before it in its process
	}
	for key, t := range p.tools {
		if err := t.there(b.connect != ""); err != nil {
			return err
		}
		if t.alone {
			continue
		}
		if _, err := b.runTool(t, report.Cell{Peer: p.key, Workload: key, Size: 64, Conns: 1}, firstCount); err != nil {
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
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Second)
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
func (b *bench) measure(c report.Cell) (s report.Sample, err error) {
	if err := b.others.be(c.Busy); err != nil {
		return s, err
	}
	p, _ := findPeer(c.Peer)
	w, _ := findWorkload(c.Workload)
	switch {
	case p.program != "":
		return b.measureApart(p, w, c)
	case p.dial == nil:
		return b.measureTool(p.tools[c.Workload], c)
	}
	address, err := b.listen(p, w.protocol)
	if err != nil {
		return s, err
	}
	defer b.closeService(address)
	return b.runner.Measure(b.ctx, c, &w.Workload, p.dialAt(address))
}

// usages returns what both processes have used so far; if they are one, nothing as the server's.
func (b *bench) usages() (client, server workload.Usage, err error) {
	if b.oneProcess {
		return workload.OwnUsage(), server, nil
	}
	err = b.server.Call("Server.Usage", struct{}{}, &server)
	return workload.OwnUsage(), server, err
}
