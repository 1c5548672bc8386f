package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/benchmarks/process"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/verbs"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/perf/report"
	"github.com/ringnet/ringnet/rconn"
)

const (
	beats     = 200             // round trips before and after a fault
	portIsOut = 3 * time.Second // with -port-down
	faultTime = 2 * time.Minute // until a fault is given up
)

// failover has connections lose what can be taken from them by software.
func (s *session) failover(p *part) {
	p.Note = "One connection with a byte that goes there and back all the time, and what became of it."
	p.row("fault", "the connection", "without a reply for", "moves of its link")
	for _, fault := range []struct {
		name string
		try  func(p *part, name string) error
	}{
		{"the peer's process is killed", s.killPeer},
		{"its queue pair is moved to ERR", s.breakQueuePair},
		{fmt.Sprintf("the port is down for %v (ip link set)", portIsOut), s.takePortDown},
	} {
		if err := fault.try(p, fault.name); err != nil {
			p.problem("%s: %v", fault.name, err)
		}
	}
}

// withPeer calls a function with the address of the other end of connections.
func (s *session) withPeer(f func(ctx context.Context, address string) error) error {
	host, address := cmp.Or(s.connect, s.address), ""
	if err := s.server.Call("Server.StartPeer", host, &address); err != nil {
		return err
	}
	defer s.kill()
	ctx, cancel := context.WithTimeout(s.ctx, faultTime)
	defer cancel()
	return f(ctx, address)
}

// kill kills what the other end has started.
func (s *session) kill() { _ = s.server.Call("Server.Kill", struct{}{}, new(struct{})) }

// pulse is how a connection did.
type pulse struct {
	longest time.Duration // from a byte to its reply
	err     error
}

// during has a connection beat before, during and after a fault: it sends a byte and waits for its
// reply, again and again, unless it ends.
func during(c net.Conn, fault func() error) (p pulse, err error) {
	if err := c.SetDeadline(time.Now().Add(faultTime)); err != nil {
		return p, err
	}
	b := make([]byte, 1)
	beat := func() {
		began := time.Now()
		if _, p.err = c.Write(b); p.err == nil {
			_, p.err = io.ReadFull(c, b)
		}
		p.longest = max(p.longest, time.Since(began))
	}
	for n := 0; n < beats && p.err == nil; n++ {
		beat()
	}
	wrong := make(chan error, 1)
	go func() { wrong <- fault() }()
	for len(wrong) == 0 && p.err == nil {
		beat()
	}
	for n := 0; n < beats && p.err == nil; n++ {
		beat()
	}
	return p, <-wrong
}

// tell adds a row about a connection.
func (p *part) tell(name string, c *ringnet.Conn, was pulse) {
	became := "went on"
	if was.err != nil {
		became = "ended: " + was.err.Error()
	}
	p.row(name, became, report.Nanos(float64(was.longest)), fmt.Sprint(c.Link().Moves))
}

func (s *session) killPeer(p *part, name string) error {
	was, err := s.disturb(p, name, func() error {
		s.kill()
		return nil
	})
	if err == nil && was.err == nil {
		err = errors.New("the connection has not ended")
	}
	return err
}

// disturb tells what became of a connection of package ringnet.
func (s *session) disturb(p *part, name string, fault func() error) (was pulse, err error) {
	err = s.withPeer(func(ctx context.Context, address string) error {
		c, err := new(ringnet.Dialer).DialContext(ctx, "rdma", address)
		if err != nil {
			return err
		}
		defer c.Close()
		was, err = during(c, fault)
		p.tell(name, c.(*ringnet.Conn), was)
		return err
	})
	return was, err
}

// breakQueuePair makes the link itself, to have its queue pair at hand.
func (s *session) breakQueuePair(p *part, name string) error {
	return s.withPeer(func(ctx context.Context, address string) error {
		f, err := verbs.Fabric()
		if err != nil {
			return err
		}
		c, ep, err := dialLink(ctx, f, address)
		if err != nil {
			return err
		}
		defer c.Close()
		was, err := during(c, ep.Disconnect)
		p.tell(name, c, was)
		return errors.Join(was.err, err)
	})
}

// dialLink makes a connection as package ringnet does, with a link of its own.
func dialLink(ctx context.Context, f fabric.Fabric, address string) (*ringnet.Conn, fabric.Endpoint, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, nil, err
	}
	cfg, err := link.NewSetup(nil)
	if err != nil {
		return nil, nil, err
	}
	cfg.Network, cfg.Dedicated = "rdma", true
	cfg.Addresses, cfg.Reconnect = new(link.Addresses), &link.ReconnectListener{Fabric: f}
	ep, err := f.Dial(ctx, netip.AddrPort{}, to)
	if err != nil {
		return nil, nil, err
	}
	s, err := link.Dial(ctx, ep, cfg)
	if err != nil {
		return nil, nil, err
	}
	return rconn.New(s, nil), ep, nil
}

func (s *session) takePortDown(p *part, name string) error {
	netdev, _ := s.chosen.network()
	switch {
	case !s.portDown:
		return errors.New("not permitted: -port-down permits it")
	case netdev == "":
		return errors.New("the device has no network interface")
	}
	set := func(state string) error {
		_, err := process.Call{Program: "ip", Args: []string{"link", "set", netdev, state}, Most: time.Minute}.Run(context.Background())
		return err
	}
	was, err := s.disturb(p, name, func() error {
		err := set("down")
		time.Sleep(portIsOut)
		return errors.Join(err, set("up"))
	})
	return errors.Join(was.err, err)
}
