// Package datagram adds queue pairs for datagrams to the networks of package sim: they
// send to any number of others and receive from them, as those of package verbs. Where a
// device punishes misuse, they panic and say why.
//
// The link loses datagrams, doubles them and delays them as Link says; one that finds a
// receive queue full is lost, too. Senders are told when a queue pair ends, as those over
// verbs are (docs/protocol.md, section 12.2).
//
// The way through the files: datagram.go has the network, and its queue pairs from
// ListenPacket to Close, resolve.go address handles, group.go memberships, send.go and
// queue.go what is sent and received.
package datagram

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

const (
	// mtu is how many bytes a datagram has at most, its header included: the
	// largest MTU of InfiniBand.
	mtu = 4096

	// tellWithin is how long Close waits at most for senders to know.
	tellWithin = time.Second
)

// Link says how a network behaves. No datagram takes of its Bandwidth.
type Link struct {
	sim.Link

	// Datagrams are lost, arrive twice, and are late, at random from Seed. Loss and
	// Duplicates are shares from 0 to 1, for each receiver. Reordering is the longest
	// time by which a datagram may be late, so that others overtake it.
	Loss       float64
	Duplicates float64
	Reordering time.Duration
}

// Network is a network that carries datagrams as well as connections.
type Network struct {
	*sim.Network
	link Link

	// mu guards what follows, and the state of all endpoints, receive queues and
	// handles. Events of the agenda run with mu held. It is taken before the
	// mutex of the embedded Network.
	mu        sync.Mutex
	agenda    sim.Agenda
	rng       *rand.Rand
	endpoints []*endpoint      // not closed
	handles   []*addressHandle // not closed, and being resolved
	lastPort  uint16
	overruns  uint64
	queues    uint64 // how many receive queues there have been
}

// New makes a network, as [sim.New] does.
func New(l Link) *Network {
	n := &Network{Network: sim.New(l.Link), link: l, rng: rand.New(rand.NewPCG(l.Seed, 0))}
	n.link.Link = n.Network.Link()
	n.agenda.L = &n.mu
	return n
}

// Open is the number of endpoints of both kinds, listeners and address handles that are
// not closed.
func (n *Network) Open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.Network.Open() + len(n.endpoints) + len(n.handles)
}

// RemoveDevice takes the device away from every endpoint, for good.
func (n *Network) RemoveDevice() {
	n.Network.RemoveDevice()
	for _, d := range n.opened() {
		d.lost(fabric.ErrDeviceRemoved)
	}
}

// opened are the endpoints that are not closed.
func (n *Network) opened() []*endpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.endpoints)
}

// Overruns is the number of datagrams that found a receive queue full.
func (n *Network) Overruns() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.overruns
}

// endpoint implements [fabric.DatagramEndpoint]. The caller of a method that is not
// exported holds Network.mu, except for source, membership, take, next and shut; the
// same goes for the methods of receiveQueue.
type endpoint struct {
	n      *Network
	local  netip.AddrPort
	filter func(*fabric.Datagram) bool
	notify func()
	lost   func(error)

	// Written without a lock by Send and by Receive, so that the race detector finds two
	// calls at once; recvTurn is also where Receive begins.
	sendTurn, recvTurn int

	// Guarded by Network.mu.
	recvQueue int             // the length of each of its receive queues
	queues    []*receiveQueue // its own, and one for each group
	armed     bool
	closed    bool
}

var (
	_ fabric.Datagrams        = (*Network)(nil)
	_ fabric.DatagramEndpoint = (*endpoint)(nil)
)

// ListenPacket implements [fabric.Datagrams].
func (n *Network) ListenPacket(local netip.AddrPort, o fabric.DatagramOptions) (fabric.DatagramEndpoint, error) {
	if n.Removed() {
		return nil, fmt.Errorf("sim: listen: %w", fabric.ErrDeviceRemoved)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	local, err := sim.Bind(sim.Wildcard(local), &n.lastPort, func(a netip.AddrPort) bool {
		return slices.ContainsFunc(n.endpoints, func(d *endpoint) bool { return sim.Collide(d.local, a) })
	})
	if err != nil {
		return nil, fmt.Errorf("sim: listen at %v: %w", local, err)
	}
	d := &endpoint{n: n, local: local, filter: o.Filter, notify: o.Notify, lost: o.Lost, recvQueue: max(o.RecvQueue, 1)}
	d.addQueue(membership{})
	n.endpoints = append(n.endpoints, d)
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
func (d *endpoint) source(to netip.AddrPort) netip.Addr {
	if a := d.local.Addr(); !a.IsUnspecified() {
		return a
	}
	a, _ := d.n.Source(to)
	return a
}

// LocalAddr implements [fabric.DatagramEndpoint].
func (d *endpoint) LocalAddr() netip.AddrPort { return d.local }

// DatagramLimits implements [fabric.DatagramEndpoint].
func (d *endpoint) DatagramLimits() fabric.DatagramLimits {
	return fabric.DatagramLimits{MaxMessage: mtu - fabric.HeaderSize, Spin: d.n.link.Spin}
}

// SetRecvQueue implements [fabric.DatagramEndpoint], at once.
func (d *endpoint) SetRecvQueue(n int) {
	d.n.mu.Lock()
	defer d.n.mu.Unlock()
	d.recvQueue = max(n, 1)
}

// Arm implements [fabric.DatagramEndpoint].
func (d *endpoint) Arm() {
	d.n.mu.Lock()
	defer d.n.mu.Unlock()
	d.armed = true
}

// Close implements [fabric.DatagramEndpoint]. If there are senders, it waits as long as
// a notice to them and their answer take.
func (d *endpoint) Close() error {
	senders, err := d.shut()
	if senders > 0 {
		time.Sleep(min(2*d.n.link.Latency, tellWithin))
	}
	return err
}

// shut ends all receive queues, sends each sender a notice, and returns how many senders
// there are. A sender that cannot be reached finds out after CMTimeout. shut takes
// Network.mu.
func (d *endpoint) shut() (senders int, err error) {
	n := d.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if d.closed {
		return 0, net.ErrClosed
	}
	if slices.ContainsFunc(n.handles, func(h *addressHandle) bool { return h.from == d }) {
		panic("sim: Close of an endpoint that has address handles")
	}
	d.closed = true
	for _, q := range d.queues {
		q.end()
	}
	n.endpoints = slices.DeleteFunc(n.endpoints, func(other *endpoint) bool { return other == d })
	for _, h := range n.handles {
		if h.receiver != d {
			continue
		}
		senders++
		n.agenda.After(n.link.Latency, func() {
			if n.Severed(h.source, h.to.Addr()) {
				n.agenda.After(n.link.CMTimeout, func() { h.gone = true })
			} else {
				h.gone = true
			}
		})
	}
	return senders, nil
}

// use panics after Close.
func (d *endpoint) use(method string) {
	if d.closed {
		panic("sim: " + method + " after Close")
	}
}
