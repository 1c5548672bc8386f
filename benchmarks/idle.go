package main

import (
	"context"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/perf/report"
	"github.com/ringnet/ringnet/internal/perf/workload"
)

// Idle is what connections cost that were used once and then left alone.
type Idle struct {
	Peer    string
	Conns   int
	Seconds float64 // how long it took to open them, one after the other, with a byte echoed on each
	Memory  float64 // bytes of both processes in the end, in all
	Client  float64 // bytes that a connection has taken of the client's memory
	Server  float64
	CPU     float64 // processor time of both while the connections were idle, in seconds per second
	Error   string  `json:",omitempty"`
}

// settle is how long after the last connection was made the processes are examined: by
// then all polling has stopped.
const settle = 500 * time.Millisecond

// idleTime is how long the connections are left alone.
const idleTime = 2 * time.Second

// measureIdle makes many connections with each network and looks at both
// processes.
func (b *bench) measureIdle() {
	for _, n := range b.idle {
		for _, info := range b.report.Peers {
			p, _ := findPeer(info.Key)
			if info.Unavailable != "" || p.dial == nil || p.as != "" {
				continue
			}
			b.show.Note("%d idle connections, %s", n, p.name)
			idle := Idle{Peer: p.key, Conns: n}
			if err := b.measureIdlePeer(p, &idle); err != nil {
				idle.Error = err.Error()
				b.show.Note("%v", err)
			}
			b.report.Idle = append(b.report.Idle, idle)
		}
	}
}

func (b *bench) measureIdlePeer(p *peer, idle *Idle) error {
	address, err := b.listen(p, "once")
	if err != nil {
		return err
	}
	defer b.closeService(address)
	ctx, cancel := context.WithTimeout(b.ctx, 5*time.Minute)
	defer cancel()
	ringnet.CloseIdleLinks()
	time.Sleep(settle) // until earlier connections are gone, too
	client, server, err := b.memory()
	if err != nil {
		return err
	}
	start := time.Now()
	_, closeAll, err := workload.OpenAll(idle.Conns, func() (net.Conn, error) {
		c, err := p.dial(ctx, address)
		if err != nil {
			return nil, err
		}
		if l, ok := c.(interface{ SetLinger(int) error }); ok {
			_ = l.SetLinger(0) // in the end there is nothing to wait for
		}
		one := make([]byte, 1)
		if _, err := c.Write(one); err != nil {
			return nil, err
		}
		_, err = io.ReadFull(c, one)
		return c, err
	})
	if err != nil {
		return err
	}
	defer closeAll()
	idle.Seconds = time.Since(start).Seconds()
	time.Sleep(settle)
	clientAfter, serverAfter, err := b.memory()
	if err != nil {
		return err
	}
	idle.Memory = clientAfter + serverAfter
	idle.Client = (clientAfter - client) / float64(idle.Conns)
	idle.Server = (serverAfter - server) / float64(idle.Conns)
	idle.CPU, err = b.idleCPU()
	return err
}

// memory is that of both processes.
func (b *bench) memory() (client, server float64, err error) {
	err = b.server.Call("Server.Memory", struct{}{}, &server)
	return ownMemory(), server, err
}

// ownMemory is what this process has resident, in bytes. What two processes share counts half for
// each (the kernel's proportional set size).
func ownMemory() float64 {
	runtime.GC()         // pools lose what they hold with the second collection,
	debug.FreeOSMemory() // which this begins with
	return float64(report.ProcBytes("/proc/self/smaps_rollup", "Pss"))
}

// idleCPU is the share of a processor that both processes take while they do
// nothing.
func (b *bench) idleCPU() (float64, error) {
	client, server, err := b.usages()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	time.Sleep(idleTime)
	clientAfter, serverAfter, err := b.usages()
	return (clientAfter.CPU - client.CPU + serverAfter.CPU - server.CPU) / time.Since(start).Seconds(), err
}
