// Queue pairs for datagrams, which send to any number of others and receive from
// them: what one is, from ListenPacket to Close. The rest is in resolve.go, group.go,
// datagramsend.go and datagramqueue.go, as in package verbs.
//
// The link loses datagrams, doubles them and delays them as Link says; one that finds a
// receive queue full is lost, too. Senders are told when a queue pair ends, as those over
// verbs are (docs/protocol.md, section 12.2).

package sim

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

const (
	// mtu is how many bytes a datagram has at most, its header included: the
	// largest MTU of InfiniBand.
	mtu = 4096

	// tellWithin is how long Close waits at most for senders to know.
	tellWithin = time.Second
)

// packets is what all queue pairs for datagrams of a network share.
type packets struct {
	// Its mu guards what follows, and the state of all endpoints, receive queues and
	// handles. Events of the agenda run with mu held.
	agenda

	rng       *rand.Rand
	endpoints []*datagrams     // not closed
	handles   []*addressHandle // not closed, and being resolved
	lastPort  uint16
	overruns  uint64
	queues    uint64 // how many receive queues there have been
}

// open is the number of endpoints and handles that are not closed.
func (p *packets) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.endpoints) + len(p.handles)
}

// opened are the endpoints that are not closed.
func (p *packets) opened() []*datagrams {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.endpoints)
}

// Overruns is the number of datagrams that found a receive queue full.
func (n *Network) Overruns() uint64 {
	n.packets.mu.Lock()
	defer n.packets.mu.Unlock()
	return n.packets.overruns
}

// datagrams implements [fabric.DatagramEndpoint]. The caller of a method that is not
// exported holds packets.mu, except for source, membership, take, next and shut; the
// same goes for the methods of receiveQueue.
type datagrams struct {
	n      *Network
	local  netip.AddrPort
	filter func(*fabric.Datagram) bool
	notify func()
	lost   func(error)

	// As Endpoint.turn, of Send and of Receive.
	sendTurn, recvTurn int

	// Guarded by packets.mu.
	recvQueue int             // the length of each of its receive queues
	queues    []*receiveQueue // its own, and one for each group
	armed     bool
	closed    bool
}

var (
	_ fabric.Datagrams        = (*Network)(nil)
	_ fabric.DatagramEndpoint = (*datagrams)(nil)
)

// ListenPacket implements [fabric.Datagrams].
func (n *Network) ListenPacket(local netip.AddrPort, o fabric.DatagramOptions) (fabric.DatagramEndpoint, error) {
	if n.gone.Load() {
		return nil, fmt.Errorf("sim: listen: %w", fabric.ErrDeviceRemoved)
	}
	p := &n.packets
	p.mu.Lock()
	defer p.mu.Unlock()
	local, err := bind(wildcard(local), &p.lastPort, func(a netip.AddrPort) bool {
		return slices.ContainsFunc(p.endpoints, func(d *datagrams) bool { return collide(d.local, a) })
	})
	if err != nil {
		return nil, fmt.Errorf("sim: listen at %v: %w", local, err)
	}
	d := &datagrams{n: n, local: local, filter: o.Filter, notify: o.Notify, lost: o.Lost, recvQueue: max(o.RecvQueue, 1)}
	d.addQueue(membership{})
	p.endpoints = append(p.endpoints, d)
	return d, nil
}

// Source implements [fabric.Datagrams]: every address is of every host.
func (n *Network) Source(remote netip.AddrPort) (netip.Addr, error) {
	if a := fabric.Plain(remote).Addr(); !a.IsMulticast() {
		return a, nil
	}
	return fabric.Loopback(fabric.Plain(remote).Addr()), nil
}

// source is the address that an endpoint sends from.
func (d *datagrams) source(to netip.AddrPort) netip.Addr {
	if a := d.local.Addr(); !a.IsUnspecified() {
		return a
	}
	a, _ := d.n.Source(to)
	return a
}

// LocalAddr implements [fabric.DatagramEndpoint].
func (d *datagrams) LocalAddr() netip.AddrPort { return d.local }

// DatagramLimits implements [fabric.DatagramEndpoint].
func (d *datagrams) DatagramLimits() fabric.DatagramLimits {
	return fabric.DatagramLimits{MaxMessage: mtu - fabric.HeaderSize, Spin: d.n.link.Spin}
}

// SetRecvQueue implements [fabric.DatagramEndpoint], at once.
func (d *datagrams) SetRecvQueue(n int) {
	d.n.packets.mu.Lock()
	defer d.n.packets.mu.Unlock()
	d.recvQueue = max(n, 1)
}

// Arm implements [fabric.DatagramEndpoint].
func (d *datagrams) Arm() {
	d.n.packets.mu.Lock()
	defer d.n.packets.mu.Unlock()
	d.armed = true
}

// Close implements [fabric.DatagramEndpoint]. If there are senders, it waits as long as
// a notice to them and their answer take.
func (d *datagrams) Close() error {
	senders, err := d.shut()
	if senders > 0 {
		time.Sleep(min(2*d.n.link.Latency, tellWithin))
	}
	return err
}

// shut ends all receive queues, sends each sender a notice, and returns how many senders
// there are. A sender that cannot be reached finds out after CMTimeout. shut takes
// packets.mu.
func (d *datagrams) shut() (senders int, err error) {
	p := &d.n.packets
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.closed {
		return 0, net.ErrClosed
	}
	if slices.ContainsFunc(p.handles, func(h *addressHandle) bool { return h.from == d }) {
		panic("sim: Close of an endpoint that has address handles")
	}
	d.closed = true
	for _, q := range d.queues {
		q.end()
	}
	p.endpoints = slices.DeleteFunc(p.endpoints, func(other *datagrams) bool { return other == d })
	for _, h := range p.handles {
		if h.receiver != d {
			continue
		}
		senders++
		p.after(d.n.link.Latency, func() {
			if d.n.cables.severed(h.source, h.to.Addr()) {
				p.after(d.n.link.CMTimeout, func() { h.gone = true })
			} else {
				h.gone = true
			}
		})
	}
	return senders, nil
}

// use panics after Close.
func (d *datagrams) use(method string) {
	if d.closed {
		panic("sim: " + method + " after Close")
	}
}
