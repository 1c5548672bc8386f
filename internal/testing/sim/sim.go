// Package sim is a fabric of queue pairs inside one process, on a modelled
// link: latency, bandwidth, queue depths, and faults on command. It is for
// tests, in the virtual time of testing/synctest or in real time. Its queue pairs
// behave as on hardware, and where a device punishes misuse, they panic and say why,
// or fail as the device does.
//
// The way through the files: sim.go has the network, addr.go its addresses,
// listener.go and connect.go the connection manager, send.go and receive.go the
// queue pair, completion.go the completion queue and its events, memory.go
// registered memory, wire.go the time that messages take, agenda.go events to come,
// faults.go what a test can break.
package sim

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Link says how a network behaves. The zero Link is instantaneous: PostSend hands a work
// request to the peer's completion queue, without a timer, a goroutine or an allocation.
type Link struct {
	// Latency is how long a message takes from one end to the other.
	Latency time.Duration

	// Bandwidth is in bytes per second in each direction, shared by all
	// connections of the network: what dialers send is one direction, what
	// listeners send the other. Only payload counts. 0 means unlimited.
	Bandwidth int64

	// Jitter is the longest time by which a completion may be late, at random
	// from Seed. Sends and receives are late independently of each other, each
	// in their order.
	Jitter time.Duration
	Seed   uint64

	// The longest queues that Open grants; 0 means that it grants what is asked for.
	SendQueue int
	RecvQueue int

	// Inline is the number of bytes that a work request carries by itself; 0
	// means DefaultInline, a negative number none.
	Inline int

	// KeepMemory says that memory to which the peer may write cannot be freed, as where two processes share it.
	KeepMemory bool

	// Spin is Limits.Spin. Only tests in real time may set it: virtual time stands
	// still while a goroutine polls.
	Spin int

	// CMTimeout is how long the connection manager repeats a message that is
	// not answered; 0 means DefaultCMTimeout.
	CMTimeout time.Duration
}

const (
	// DefaultInline is what a ConnectX grants to a usual request.
	DefaultInline = 220
	// DefaultCMTimeout is what rdma_cm waits in all: 15 retries of 4.3 s
	// (Linux, drivers/infiniband/core/cma.c).
	DefaultCMTimeout = 64 * time.Second
)

// Network is a link with any number of hosts at either end. It is a
// [fabric.Fabric]; every address is an address of the network. All methods may
// be called at once.
type Network struct {
	link    Link
	instant bool // a message arrives and is acknowledged when it is posted
	faults  atomic.Pointer[Faults]
	cables  atomic.Pointer[map[netip.Addr]bool] // whose are cut; under the zero Addr, all are. Stored with mu held
	gone    atomic.Bool                         // the device was removed
	rnr     atomic.Uint64

	mu        sync.Mutex // guards what follows; taken after a connection's
	lanes     [2]lane
	listeners []*Listener
	ports     map[netip.AddrPort]bool // of dialers
	lastPort  uint16                  // that the network has chosen
	endpoints []*Endpoint             // not closed, in the order made
	holes     map[netip.Addr]bool     // see Blackhole

	lastEndpoint uint64 // the number of the last endpoint made
	lastKey      uint32
	nextAddr     uint64 // of memory, behind which an overrun hits nothing
}

var _ fabric.Fabric = (*Network)(nil)

// New makes a network. Under testing/synctest it belongs to the bubble that
// made it.
func New(l Link) *Network {
	l.SendQueue, l.RecvQueue = cmp.Or(l.SendQueue, math.MaxInt), cmp.Or(l.RecvQueue, math.MaxInt)
	l.Inline = max(cmp.Or(l.Inline, DefaultInline), 0)
	l.CMTimeout = cmp.Or(l.CMTimeout, DefaultCMTimeout)
	n := &Network{
		link:    l,
		instant: l.Latency == 0 && l.Bandwidth == 0,
		ports:   make(map[netip.AddrPort]bool),
		holes:   make(map[netip.Addr]bool),

		nextAddr: 0x7f00_0000_0000,
	}
	n.cables.Store(new(map[netip.Addr]bool))
	n.SetFaults(Faults{})
	return n
}

// Open is the number of endpoints and listeners that are not closed.
func (n *Network) Open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.endpoints) + len(n.listeners)
}

// RNR is the number of messages that found no receive posted.
func (n *Network) RNR() uint64 { return n.rnr.Load() }

// Endpoints are the endpoints that are not closed, in the order made.
func (n *Network) Endpoints() []*Endpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.endpoints)
}

// Find returns the endpoint with these addresses that is not closed, or nil.
func (n *Network) Find(local, remote netip.AddrPort) *Endpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.endpoints {
		if e.local == local && e.remote == remote {
			return e
		}
	}
	return nil
}

// Dial implements [fabric.Fabric]. It does not look for a listener: Connect does.
func (n *Network) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if n.gone.Load() {
		return nil, fmt.Errorf("sim: dial: %w", fabric.ErrDeviceRemoved)
	}
	if !remote.IsValid() || remote.Port() == 0 {
		return nil, fmt.Errorf("sim: dial %v: %w", remote, syscall.EINVAL)
	}
	remote = fabric.Plain(remote)
	if remote.Addr().IsUnspecified() {
		remote = netip.AddrPortFrom(fabric.Loopback(remote.Addr()), remote.Port())
	}
	local = fabric.Plain(local)
	if !local.Addr().IsValid() || local.Addr().IsUnspecified() {
		local = netip.AddrPortFrom(remote.Addr(), local.Port())
	}

	n.mu.Lock()
	defer n.mu.Unlock()
	local, err := bind(local, &n.lastPort, n.taken)
	if err != nil {
		return nil, fmt.Errorf("sim: dial from %v: %w", local, err)
	}
	n.ports[local] = true
	return n.endpoint(n.newConn([2]netip.Addr{local.Addr(), remote.Addr()}), local, remote, active), nil
}

// endpoint makes an endpoint of c. The caller holds n.mu.
func (n *Network) endpoint(c *conn, local, remote netip.AddrPort, s side) *Endpoint {
	n.lastEndpoint++
	e := newEndpoint(n, c, local, remote, s, n.lastEndpoint)
	n.endpoints = append(n.endpoints, e)
	return e
}

// forget removes a closed endpoint. It takes n.mu.
func (n *Network) forget(e *Endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := slices.Index(n.endpoints, e); i >= 0 {
		n.endpoints = slices.Delete(n.endpoints, i, i+1)
	}
	if e.side == active {
		delete(n.ports, e.local)
	}
}
