//go:build linux && cgo

package verbs

// Datagrams: queue pairs of type UD, which send to any number of others and receive from
// them. Each port of a device that belongs to the address has one of its own
// (datagramqueue.go).
//
// Who has which queue pair at an address the connection manager tells, in its port space
// for UDP: by SIDR, one request and one reply. A device does not tell a sender that a
// queue pair is no more. Therefore a sender has another request pending, which the
// receiver, or its kernel when the process has died, rejects when the queue pair ends
// (resolve.go, and section 12.2 of docs/protocol.md). Members of groups are in group.go.

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

const (
	// maxDatagramQueue is how many receives a queue pair may have for datagrams.
	maxDatagramQueue = 1 << 13

	// resolutionBacklog is how many requests wait to be looked at, and maxRequests how
	// many for the other of the same sender.
	resolutionBacklog = 128
	maxRequests       = 128

	// tellWithin is how long the end of a queue pair waits for those who send to it to
	// know, and maxTelling how many are told at once.
	tellWithin = time.Second
	maxTelling = 32

	// largestMTU is that of InfiniBand, and RoCE, in bytes.
	largestMTU = 4096
)

// datagrams implements [fabric.DatagramEndpoint].
type datagrams struct {
	rdma       rdma // in the port space for UDP
	local      netip.AddrPort
	limits     fabric.DatagramLimits
	filter     func(*fabric.Datagram) bool
	notify     func()
	listener   *listener
	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	background sync.WaitGroup // goroutines

	// queues is replaced, never changed, with mu held. turn is that of Receive.
	queues atomic.Pointer[[]*datagramQueue]
	turn   int

	mu        sync.Mutex // guards what follows, and the fields of queues that say so
	recvQueue int
	requests  []pendingRequest // the oldest first
	handles   map[uint64]*addressHandle
	closed    bool
}

var (
	_ fabric.Datagrams        = rdma{}
	_ fabric.DatagramEndpoint = (*datagrams)(nil)
)

// ListenPacket implements [fabric.Datagrams].
func (f rdma) ListenPacket(local netip.AddrPort, o fabric.DatagramOptions) (fabric.DatagramEndpoint, error) {
	f.space = C.RN_RDMA_PS_UDP
	d := &datagrams{rdma: f, filter: o.Filter, notify: o.Notify, handles: make(map[uint64]*addressHandle)}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.queues.Store(new([]*datagramQueue))
	d.recvQueue = clampRecvQueue(o.RecvQueue)
	l, err := f.Listen(local, resolutionBacklog)
	if err != nil {
		return nil, err
	}
	d.listener, d.local = l.(*listener), l.Addr()
	d.limits = fabric.DatagramLimits{MaxMessage: largestMTU - fabric.HeaderSize, Spin: spin}
	var unfit error // of a port that has no datagrams, which is in the way of no other
	for _, a := range d.ports() {
		q, err := d.addQueue(a)
		switch {
		case err == nil:
			d.limits.MaxMessage = min(d.limits.MaxMessage, q.maxMessage())
		case errors.Is(err, errors.ErrUnsupported):
			unfit = err
		default:
			_ = d.Close()
			return nil, err
		}
	}
	if unfit != nil && len(*d.queues.Load()) == 0 {
		_ = d.Close()
		return nil, unfit
	}
	d.background.Go(d.serve)
	return d, nil
}

// ports is an address of each port that the endpoint listens at.
func (d *datagrams) ports() (all []netip.Addr) {
	if a := d.local.Addr(); !a.IsUnspecified() {
		return []netip.Addr{a}
	}
	for _, card := range d.rdma.Cards() {
		all = append(all, card[0])
	}
	return all
}

// Source implements [fabric.Datagrams]. RDMA uses the routes of IP.
func (f rdma) Source(remote netip.AddrPort) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(remote)) // which sends nothing
	if err != nil {
		return netip.Addr{}, errors.Unwrap(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// LocalAddr implements [fabric.DatagramEndpoint].
func (d *datagrams) LocalAddr() netip.AddrPort { return d.local }

// DatagramLimits implements [fabric.DatagramEndpoint].
func (d *datagrams) DatagramLimits() fabric.DatagramLimits { return d.limits }

func clampRecvQueue(n int) int { return min(max(n, 1), maxDatagramQueue) }

// SetRecvQueue implements [fabric.DatagramEndpoint]: for the queue pairs that nobody has
// used yet, of which it makes others if there is memory for them.
func (d *datagrams) SetRecvQueue(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recvQueue = clampRecvQueue(n)
	for _, q := range *d.queues.Load() {
		if !q.used {
			if _, err := d.openQueue(q.local, netip.AddrPort{}); err == nil {
				d.remove(q)
			}
		}
	}
}

// addQueue makes a queue pair at the port with an address.
func (d *datagrams) addQueue(local netip.Addr) (*datagramQueue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.openQueue(local, netip.AddrPort{})
}

// openQueue does that, or makes one to receive from a group. Called with mu held.
func (d *datagrams) openQueue(local netip.Addr, group netip.AddrPort) (*datagramQueue, error) {
	if d.closed {
		return nil, net.ErrClosed
	}
	q, err := newDatagramQueue(d, local, group, d.recvQueue)
	if err != nil {
		return nil, err
	}
	all := append(slices.Clone(*d.queues.Load()), q)
	d.queues.Store(&all)
	d.notify() // somebody may wait who has not armed this one
	return q, nil
}

// use returns the queue pair at the port of an endpoint, for somebody to know it, and
// makes one if there is none. Called with mu held.
func (d *datagrams) use(e *endpoint) (*datagramQueue, error) {
	for _, q := range *d.queues.Load() {
		if !q.group.IsValid() && !q.failed.Load() && q.e.id.verbs == e.id.verbs && q.e.id.port_num == e.id.port_num {
			q.used = true
			return q, nil
		}
	}
	q, err := d.openQueue(e.local.Addr(), netip.AddrPort{})
	if err != nil {
		return nil, err
	}
	q.used = true
	return q, nil
}

// remove closes a queue pair, has its senders told, and makes its handles useless. Called
// with mu held.
func (d *datagrams) remove(q *datagramQueue) {
	all := slices.Clone(*d.queues.Load())
	i := slices.Index(all, q)
	if i < 0 {
		return
	}
	all = slices.Delete(all, i, i+1)
	d.queues.Store(&all)
	watchers := q.watchers
	q.watchers = nil
	for _, w := range watchers {
		_ = w.e.Close() // rejects the request
	}
	if len(watchers) > 0 {
		d.background.Go(func() { d.tellAll(watchers) })
	}
	q.close()
}

// fail replaces a queue pair that is of no use any more: the next request makes another, or
// the membership goes on over another.
// It does so in the background, for those who find out hold locks of the queue pair.
func (d *datagrams) fail(q *datagramQueue) {
	if q.failed.Swap(true) {
		return
	}
	go func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if q.group.IsValid() {
			d.replaceMember(q)
		} else {
			d.remove(q) // does nothing after Close
		}
	}()
}

// Send implements [fabric.DatagramEndpoint].
func (d *datagrams) Send(ds []fabric.Datagram) {
	for len(ds) > 0 {
		q := ds[0].To.(*addressHandle).q
		n := 1
		for n < len(ds) && ds[n].To.(*addressHandle).q == q {
			n++
		}
		q.send(ds[:n])
		ds = ds[n:]
	}
}

// Receive implements [fabric.DatagramEndpoint]. Each call begins with another queue pair
// than the last, so that none keeps it from the others.
func (d *datagrams) Receive(ds []fabric.Datagram) (n int) {
	queues := *d.queues.Load()
	d.turn++
	for i := 0; i < len(queues) && n < len(ds); i++ {
		n += queues[(d.turn+i)%len(queues)].receive(ds[n:])
	}
	return n
}

// Arm implements [fabric.DatagramEndpoint].
func (d *datagrams) Arm() {
	for _, q := range *d.queues.Load() {
		q.arm()
	}
}

// Close implements [fabric.DatagramEndpoint]. First of all it tells those who send to it.
func (d *datagrams) Close() error {
	d.mu.Lock()
	wasClosed := d.closed
	d.closed = true
	d.mu.Unlock()
	if wasClosed {
		return net.ErrClosed
	}
	err := d.listener.Close()
	d.mu.Lock()
	for _, q := range *d.queues.Load() {
		d.remove(q)
	}
	for _, r := range d.requests {
		_ = r.e.Close()
	}
	d.requests = nil
	d.mu.Unlock()
	d.cancel()
	d.background.Wait()
	return err
}

// serve answers who asks for the queue pair, until the endpoint is closed.
func (d *datagrams) serve() {
	for {
		e, err := d.listener.Accept()
		if err != nil {
			return
		}
		d.consider(e.(*endpoint))
	}
}

// pendingRequest waits for the other of the same sender.
type pendingRequest struct {
	wire.ResolutionRequest
	e *endpoint
}

// consider answers a sender that has made both requests, and a receiver that says that its
// queue pair has ended.
func (d *datagrams) consider(e *endpoint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := wire.DecodeResolutionRequest(e.private)
	if d.closed {
		_ = e.Close()
		return
	}
	if !ok || r.Kind == wire.Ended {
		if h := d.handles[r.ID]; ok && h != nil && h.to.Addr() == e.remote.Addr() {
			h.gone.Store(true)
		}
		_ = e.Close() // which rejects what has not been answered
		return
	}
	other := slices.IndexFunc(d.requests, func(o pendingRequest) bool {
		return o.ID == r.ID && o.Kind != r.Kind && o.e.remote.Addr() == e.remote.Addr()
	})
	if other < 0 {
		d.keep(pendingRequest{r, e})
		return
	}
	asks, watches := pendingRequest{r, e}, d.requests[other]
	if r.Kind == wire.Watches {
		asks, watches = watches, asks
	}
	d.requests = slices.Delete(d.requests, other, other+1)
	d.answer(asks.e, watches)
}

// keep has a request wait. If there are too many, the oldest has waited in vain. Called
// with mu held.
func (d *datagrams) keep(r pendingRequest) {
	if len(d.requests) == maxRequests {
		_ = d.requests[0].e.Close()
		d.requests = slices.Delete(d.requests, 0, 1)
	}
	d.requests = append(d.requests, r)
}

// answer tells a sender which queue pair there is, and keeps its other request. Called
// with mu held.
func (d *datagrams) answer(asks *endpoint, watches pendingRequest) {
	defer asks.Close()
	q, err := d.use(asks)
	if err != nil {
		_ = watches.e.Close()
		return
	}
	q.watch(watches)
	reply := wire.ResolutionReply{MaxMessage: uint16(min(q.maxMessage(), d.limits.MaxMessage)), Key: q.key}
	data, n := privateData(reply.Append(nil))
	C.rn_accept(asks.id, q.e.qp.qp_num, 0, data, n)
}

// tellAll tells those who watched a queue pair that it has ended, so that what they send
// from now on goes to whoever listens at the address then.
func (d *datagrams) tellAll(watchers []watcher) {
	ctx, cancel := context.WithTimeout(context.Background(), tellWithin)
	defer cancel()
	var telling sync.WaitGroup
	turns := make(chan struct{}, maxTelling)
	for _, w := range watchers {
		turns <- struct{}{}
		telling.Go(func() {
			d.tell(ctx, w)
			<-turns
		})
	}
	telling.Wait()
}

// tell tells one, and waits until it knows.
func (d *datagrams) tell(ctx context.Context, w watcher) {
	e, err := d.request(ctx, w.at, wire.ResolutionRequest{Kind: wire.Ended, ID: w.id})
	if err != nil {
		return
	}
	_, _ = e.awaitService(ctx)
	_ = e.Close()
}
