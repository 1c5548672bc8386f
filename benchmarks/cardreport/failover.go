package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"time"

	"github.com/ringnet/ringnet"
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
	if s.device == "" {
		p.problem("%s", s.lacking)
		return
	}
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

// startPeer starts the other end of connections.
func (s *session) startPeer() (c Child, err error) {
	host := s.address
	if s.connect != "" {
		host = s.connect
	}
	return c, s.server.Call("Server.StartPeer", host, &c)
}

func (s *session) kill(c Child) { _ = s.server.Call("Server.Kill", c.ID, new(struct{})) }

// pulse is how a connection did.
type pulse struct {
	longest time.Duration // from a byte to its reply
	err     error
}

// beat sends a byte and waits for its reply, again and again, until the channel is closed or the connection ends.
func beat(c net.Conn, beaten chan<- struct{}, until <-chan struct{}) (p pulse) {
	b := make([]byte, 1)
	for {
		began := time.Now()
		_, p.err = c.Write(b)
		if p.err == nil {
			_, p.err = io.ReadFull(c, b)
		}
		p.longest = max(p.longest, time.Since(began))
		if p.err != nil {
			return p
		}
		select {
		case beaten <- struct{}{}:
		case <-until:
			return p
		}
	}
}

// during has a connection beat before, during and after a fault.
func during(c net.Conn, fault func() error) (pulse, error) {
	if err := c.SetDeadline(time.Now().Add(faultTime)); err != nil {
		return pulse{}, err
	}
	beaten, until, done := make(chan struct{}), make(chan struct{}), make(chan pulse, 1)
	go func() { done <- beat(c, beaten, until) }()
	var wrong error
	for n := range 2 * beats {
		if n == beats {
			// The fault is not waited for with a beat in hand.
			failed := make(chan error, 1)
			go func() { failed <- fault() }()
			for pending := true; pending; {
				select {
				case wrong = <-failed:
					pending = false
				case <-beaten:
				}
			}
		}
		select {
		case <-beaten:
		case p := <-done:
			return p, wrong
		}
	}
	close(until)
	return <-done, wrong
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
	was, err := s.disturb(p, name, func(peer Child) error {
		s.kill(peer)
		return nil
	})
	if err == nil && was.err == nil {
		err = errors.New("the connection has not ended")
	}
	return err
}

// disturb tells what became of a connection of package ringnet.
func (s *session) disturb(p *part, name string, fault func(Child) error) (was pulse, err error) {
	err = s.withPeer(func(ctx context.Context, peer Child) error {
		c, err := new(ringnet.Dialer).DialContext(ctx, "rdma", peer.Address)
		if err != nil {
			return err
		}
		defer c.Close()
		was, err = during(c, func() error { return fault(peer) })
		p.tell(name, c.(*ringnet.Conn), was)
		return err
	})
	return was, err
}

// withPeer calls a function with a peer.
func (s *session) withPeer(f func(context.Context, Child) error) error {
	peer, err := s.startPeer()
	if err != nil {
		return err
	}
	defer s.kill(peer)
	ctx, cancel := context.WithTimeout(s.ctx, faultTime)
	defer cancel()
	return f(ctx, peer)
}

// breakQueuePair makes the link itself, to have its queue pair at hand.
func (s *session) breakQueuePair(p *part, name string) error {
	return s.withPeer(func(ctx context.Context, peer Child) error {
		f, err := verbs.Fabric()
		if err != nil {
			return err
		}
		c, ep, err := dialLink(ctx, f, peer.Address)
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
	switch {
	case !s.portDown:
		return errors.New("not permitted: -port-down permits it")
	case s.netdev == "":
		return errors.New("the device has no network interface")
	}
	set := func(state string) error {
		out, err := exec.Command("ip", "link", "set", s.netdev, state).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip link set %s: %w: %s", state, err, lastLine(string(out)))
		}
		return nil
	}
	was, err := s.disturb(p, name, func(Child) error {
		err := set("down")
		time.Sleep(portIsOut)
		return errors.Join(err, set("up"))
	})
	return errors.Join(was.err, err)
}
