package cardreport

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

// fault is something that connections lose, as far as software can take it.
type fault struct {
	name    string
	ends    bool // the connection is to end
	connect func(ctx context.Context, address string) (c *ringnet.Conn, happen func() error, err error)
}

func (s *session) failover(p *Part) {
	p.Note = "One connection with a byte that goes there and back all the time, and what became of it."
	p.table("fault", "the connection", "without a reply for", "moves of its link")
	own, other := s.bothCounters()
	for _, f := range []fault{
		{"the peer's process is killed", true, dialAnd(func() error {
			s.kill()
			return nil
		})},
		{"its queue pair is moved to ERR", false, dialLink},
		{fmt.Sprintf("the port is down for %v (ip link set)", portIsOut), false, s.dialToTakePortDown},
	} {
		if err := s.disturb(p, f); err != nil {
			p.problem("%s: %v", f.name, err)
		}
	}
	s.addBothRisen(p, own, other, "a message found no receive: ringnet promises 0")
}

// disturb tells what became of a connection to the other end.
func (s *session) disturb(p *Part, f fault) error {
	if err := s.server.Call("Host.StartPeer", cmp.Or(s.connect, s.address), &s.peer); err != nil {
		return err
	}
	defer s.kill()
	ctx, cancel := context.WithTimeout(s.ctx, faultTime)
	defer cancel()
	c, happen, err := f.connect(ctx, s.peer)
	if err != nil {
		return err
	}
	defer c.Close()
	was, err := during(c, happen)
	became := "went on"
	switch {
	case was.err == nil && f.ends:
		err = errors.Join(err, errors.New("the connection has not ended"))
	case was.err != nil:
		became = "ended: " + was.err.Error()
		if !f.ends {
			err = errors.Join(was.err, err)
		}
	}
	p.row(f.name, became, report.Nanos(float64(was.longest)), fmt.Sprint(c.Link().Moves))
	return err
}

// kill kills the peer, and returns when it is gone.
func (s *session) kill() { _ = s.server.Call("Host.Close", s.peer, new(struct{})) }

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

// dialAnd connects as programs do.
func dialAnd(happen func() error) func(context.Context, string) (*ringnet.Conn, func() error, error) {
	return func(ctx context.Context, address string) (*ringnet.Conn, func() error, error) {
		c, err := new(ringnet.Dialer).DialContext(ctx, "rdma", address)
		if err != nil {
			return nil, nil, err
		}
		return c.(*ringnet.Conn), happen, nil
	}
}

// dialLink connects as package ringnet does, with a link of its own, to have its queue pair at hand.
func dialLink(ctx context.Context, address string) (c *ringnet.Conn, disconnect func() error, err error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, nil, err
	}
	f, err := verbs.Fabric()
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
	return rconn.New(s, nil), ep.Disconnect, nil
}

func (s *session) dialToTakePortDown(ctx context.Context, address string) (*ringnet.Conn, func() error, error) {
	netdev, _ := s.chosen.network()
	switch {
	case !s.portDown:
		return nil, nil, errors.New("not permitted: -port-down permits it")
	case netdev == "":
		return nil, nil, errors.New("the device has no network interface")
	}
	set := func(state string) error {
		_, err := process.Call{Program: "ip", Args: []string{"link", "set", netdev, state}, Most: time.Minute}.Run(context.Background())
		return err
	}
	return dialAnd(func() error {
		err := set("down")
		time.Sleep(portIsOut)
		return errors.Join(err, set("up"))
	})(ctx, address)
}
