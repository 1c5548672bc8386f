package main

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/ringnet/ringnet"
)

// perConnection is what a process holds for each idle connection.
type perConnection struct {
	Memory, Anonymous, Go, Pinned    float64 // bytes; see Footprint
	Descriptors, Goroutines, Threads float64
}

// Idle is what connections cost that were used once and then left alone.
type Idle struct {
	Peer    string
	Conns   int
	Seconds float64 // how long it took to open them, one after the other, with a byte echoed on each
	Memory  int     // bytes of both processes in the end, in all
	CPU     float64 // processor time of both while the connections were idle, in seconds per second
	Client  perConnection
	Server  perConnection
	Objects Objects // by how many there are more than before
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
			if info.Unavailable != "" || p.dial == nil || p.single || p.only != nil {
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
	service, err := b.listen(p, "once")
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
	ringnet.CloseIdleLinks()
	time.Sleep(settle) // until earlier connections are gone, too
	client, server, err := b.footprints()
	if err != nil {
		return err
	}
	start := time.Now()
	for len(conns) < idle.Conns {
		c, err := p.dial(ctx, service.Address)
		if err != nil {
			return err
		}
		conns = append(conns, c)
		if err := echoOnce(c); err != nil {
			return err
		}
	}
	idle.Seconds = time.Since(start).Seconds()
	time.Sleep(settle)
	clientAfter, serverAfter, err := b.footprints()
	if err != nil {
		return err
	}
	idle.Memory = clientAfter.Memory + serverAfter.Memory
	idle.Client = clientAfter.minus(client, idle.Conns)
	idle.Server = serverAfter.minus(server, idle.Conns)
	idle.Objects = clientAfter.Objects.minus(client.Objects)
	idle.CPU, err = b.idleCPU()
	return err
}

// echoOnce uses a connection to a service of the protocol "once".
func echoOnce(c net.Conn) error {
	b := make([]byte, 1)
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(c, b)
	return err
}

func (b *bench) footprints() (client, server Footprint, err error) {
	err = b.server.Call("Server.Footprint", struct{}{}, &server)
	return footprint(), server, err
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
