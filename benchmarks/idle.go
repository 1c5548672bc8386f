package main

import (
	"context"
	"net"
	"time"
)

// perConnection is what a process holds for each idle connection.
type perConnection struct {
	Memory, Anonymous, Go            float64 // bytes; see Footprint
	Descriptors, Goroutines, Threads float64
}

// Idle is what connections cost that nobody uses.
type Idle struct {
	Peer   string
	Conns  int
	Rings  int // bytes of rings and receive buffers of one end, as configured; 0 for others than ringnet
	Client perConnection
	Server perConnection
	Error  string `json:",omitempty"`
}

// settle is how long after the last connection was made the processes are
// looked at: by then whoever polled has stopped.
const settle = 500 * time.Millisecond

// manyConns is from how many connections on ringnet gets small rings, so that
// they fit into an ordinary machine's memory.
const manyConns = 2000

// measureIdle makes many connections with each network and looks at both
// processes.
func (b *bench) measureIdle() {
	for _, n := range b.idle {
		for _, info := range b.report.Peers {
			p, _ := findPeer(info.Key)
			if info.Unavailable != "" || p.dial == nil || p.single {
				continue
			}
			b.show.note("%d idle connections, %s", n, p.name)
			idle := Idle{Peer: p.key, Conns: n}
			if p.ours != nil {
				if n > manyConns {
					p, _ = findPeer(p.key + smallRings)
				}
				idle.Rings = p.ours.PinnedMemory()
			}
			if err := b.measureIdlePeer(p, &idle); err != nil {
				idle.Error = err.Error()
				b.show.note("%v", err)
			}
			b.report.Idle = append(b.report.Idle, idle)
		}
	}
}

func (b *bench) measureIdlePeer(p *peer, idle *Idle) error {
	service, err := b.listen(p, "idle")
	if err != nil {
		return err
	}
	defer b.closeService(service)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	conns := make([]net.Conn, 0, idle.Conns)
	defer func() {
		for _, c := range conns {
			if l, ok := c.(interface{ SetLinger(int) error }); ok {
				_ = l.SetLinger(0) // there is nothing to wait for
			}
			c.Close()
		}
	}()
	time.Sleep(settle) // what was closed before has gone by then, too
	var server, serverAfter Footprint
	if err := b.server.Call("Server.Footprint", struct{}{}, &server); err != nil {
		return err
	}
	client := footprint()
	for len(conns) < idle.Conns {
		c, err := p.dial(ctx, service.Address)
		if err != nil {
			return err
		}
		conns = append(conns, c)
	}
	time.Sleep(settle)
	if err := b.server.Call("Server.Footprint", struct{}{}, &serverAfter); err != nil {
		return err
	}
	idle.Client = footprint().minus(client, idle.Conns)
	idle.Server = serverAfter.minus(server, idle.Conns)
	return nil
}
