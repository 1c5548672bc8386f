//go:build linux && cgo

package verbs

// Datagrams: queue pairs of type UD, which send to any number of others and receive from
// them. Each port of a device that belongs to the address has one of its own
// (datagramqueue.go).
//
// A sender finds the queue pair at an address by the connection manager's SIDR, in its
// port space for UDP: one request and one reply. A device does not tell a sender that a
// queue pair has ended. Therefore a sender has another request pending, which the
// receiver, or its kernel when the process has died, rejects when the queue pair ends
// (section 2 of rdmaudp/protocol.md: datagramanswer.go has the receiver's side,
// datagramresolve.go the sender's). Members of groups are in datagramgroup.go.

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
	"github.com/ringnet/ringnet/internal/wire"
)

const (
	// maxDatagramQueue is the maximum depth of a receive queue for datagrams.
	maxDatagramQueue = 1 << 13

	// resolutionBacklog is the listener's backlog of requests.
	resolutionBacklog = 128

	// largestMTU is the largest MTU of InfiniBand, and of RoCE, in bytes.
	largestMTU = 4096
)

// datagrams implements [fabric.DatagramEndpoint].
type datagrams struct {
	cm       rdmacore.CM // in the port space UDP
	v6Only   bool        // local is the unspecified IPv6 address: no IPv4
	local    netip.AddrPort
	limits   fabric.DatagramLimits
	listener *rdmacore.Listener
	callbacks
	lifetime

	// queues is copied to be changed, with mu held. turn belongs to Receive.
	queues atomic.Pointer[[]*datagramQueue]
	turn   int

	// making is held to make queue pairs or to replace them, which waits for the device,
	// and guards recvQueue. It is locked before mu.
	making    sync.Mutex
	recvQueue int

	// mu guards what follows, and the fields of queues that name it. While it is held,
	// nothing waits for a device or locks anything else.
	mu       sync.Mutex
	requests []pendingRequest          // the oldest first
	handles  map[uint64]*addressHandle // by the numbers of their requests
	closed   bool
}

// callbacks are the functions of the endpoint's owner: see [fabric.DatagramOptions].
type callbacks struct {
	filter func(*fabric.Datagram) bool
	notify func()
	lost   func(error)
}

// lifetime is that of the endpoint.
type lifetime struct {
	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	background sync.WaitGroup // goroutines, which Close waits for
}

var (
	_ fabric.Datagrams        = rdma{}
	_ fabric.DatagramEndpoint = (*datagrams)(nil)
)

// ListenPacket implements [fabric.Datagrams].
func (f rdma) ListenPacket(local netip.AddrPort, o fabric.DatagramOptions) (fabric.DatagramEndpoint, error) {
	budget.Process.Refresh()
	cm, err := rdmacore.Open(rdmacore.Config{Space: rdmacore.UDP, TrafficClass: f.config.TrafficClass})
	if err != nil {
		return nil, err
	}
	d := &datagrams{
		cm:        cm,
		v6Only:    local.Addr() == netip.IPv6Unspecified(),
		callbacks: callbacks{o.Filter, o.Notify, o.Lost},
		handles:   make(map[uint64]*addressHandle),
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.queues.Store(new([]*datagramQueue))
	d.recvQueue = clampRecvQueue(o.RecvQueue)
	l, err := cm.Listen(local, rdmacore.ListenOptions{
		Backlog: resolutionBacklog,
		Full:    wire.Full.Append(nil),
		Refusal: func(err error) []byte { return wire.Reject{Reason: err.Error()}.Append(nil) },
	})
	if err != nil {
		return nil, err
	}
	d.listener, d.local = l, l.Addr()
	d.limits = fabric.DatagramLimits{MaxMessage: largestMTU - fabric.HeaderSize, Spin: rdmacore.Spin}
	var unfit error // of a port without datagrams, which does not keep the others from having them
	for _, a := range d.ports() {
		d.making.Lock()
		q, err := d.openQueue(a, nil)
		d.making.Unlock()
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

// ports has an address of each port that the endpoint listens at.
func (d *datagrams) ports() (all []netip.Addr) {
	if a := d.local.Addr(); !a.IsUnspecified() {
		return []netip.Addr{a}
	}
	for _, port := range d.cm.Ports() {
		all = append(all, port[0])
	}
	return all
}

// Source implements [fabric.Datagrams]. RDMA uses the routes of IP.
func (f rdma) Source(remote netip.AddrPort) (netip.Addr, error) { return fabric.SourceOf(remote) }

// LocalAddr implements [fabric.DatagramEndpoint].
func (d *datagrams) LocalAddr() netip.AddrPort { return d.local }

// DatagramLimits implements [fabric.DatagramEndpoint].
func (d *datagrams) DatagramLimits() fabric.DatagramLimits { return d.limits }

func clampRecvQueue(n int) int { return min(max(n, 1), maxDatagramQueue) }

// SetRecvQueue implements [fabric.DatagramEndpoint]: it replaces the queue pairs that
// are not in use yet. If there is no memory for another, the next request makes one.
func (d *datagrams) SetRecvQueue(n int) {
	d.making.Lock()
	defer d.making.Unlock()
	d.recvQueue = clampRecvQueue(n)
	for _, q := range *d.queues.Load() {
		if d.remove(q, true) {
			d.end(q)
			_, _ = d.openQueue(q.local, nil)
		}
	}
}

// openQueue makes a queue pair at the port with an address. With a membership, it is one to
// receive from its group, and the membership ends if there is an error. Called with making held.
func (d *datagrams) openQueue(local netip.Addr, m *membership) (*datagramQueue, error) {
	q, err := newDatagramQueue(d, local, m, d.recvQueue)
	if err != nil {
		return nil, err
	}
	if !d.add(q) {
		q.close()
		return nil, net.ErrClosed
	}
	d.notify() // a goroutine that waits has not armed this one
	return q, nil
}

// add adds a queue pair to the endpoint's, or returns false if the endpoint is closed.
func (d *datagrams) add(q *datagramQueue) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	all := append(slices.Clone(*d.queues.Load()), q)
	d.queues.Store(&all)
	q.listening.Go(q.listen)
	return true
}

// queueFor returns the queue pair at the port of an ID, in use from now on, and
// makes one if there is none. It may have failed by then.
func (d *datagrams) queueFor(id *rdmacore.ID) (*datagramQueue, error) {
	if q := d.queueAt(id); q != nil {
		return q, nil
	}
	d.making.Lock()
	defer d.making.Unlock()
	if q := d.queueAt(id); q != nil {
		return q, nil // another goroutine has made it
	}
	q, err := d.openQueue(id.LocalAddr().Addr(), nil)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	q.used = true
	return q, nil
}

// queueAt is the queue pair at the port of an ID, in use from now on, or nil if
// there is none.
func (d *datagrams) queueAt(id *rdmacore.ID) *datagramQueue {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range *d.queues.Load() {
		if !q.group.IsValid() && !q.failed.Load() && q.isAt(id) {
			q.used = true
			return q
		}
	}
	return nil
}

// remove removes a queue pair from the endpoint, or returns false if it has been removed, or is in
// use and only to go if it is not.
func (d *datagrams) remove(q *datagramQueue, ifUnused bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Clone(*d.queues.Load())
	i := slices.Index(all, q)
	if i < 0 || ifUnused && q.used {
		return false
	}
	all = slices.Delete(all, i, i+1)
	d.queues.Store(&all)
	return true
}

// discard closes a queue pair, unless it has been removed from the endpoint.
func (d *datagrams) discard(q *datagramQueue) {
	if d.remove(q, false) {
		d.end(q)
	}
}

// fail marks a queue pair as failed, and replaces it: the next request makes another, or
// the membership gets another. It does so in the background, because its callers hold
// locks of the queue pair.
func (d *datagrams) fail(q *datagramQueue) {
	if q.failed.Swap(true) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
	case q.group.IsValid():
		d.background.Go(func() { d.replaceMember(q) })
	default:
		d.background.Go(func() { d.discard(q) })
	}
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

// Receive implements [fabric.DatagramEndpoint]. Each call begins with the next queue
// pair, so that a busy one does not keep it from the others.
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

// Close implements [fabric.DatagramEndpoint]. It notifies the senders of each queue
// pair, and waits for the endpoint's goroutines.
func (d *datagrams) Close() error {
	if !d.setClosed() {
		return net.ErrClosed
	}
	err := d.listener.Close()
	d.cancel()
	d.making.Lock() // those that make queue pairs have finished
	d.mu.Lock()
	queues, requests := *d.queues.Swap(new([]*datagramQueue)), d.requests
	d.requests = nil
	d.mu.Unlock()
	d.making.Unlock()
	for _, q := range queues {
		d.end(q)
	}
	for _, r := range requests {
		_ = r.id.Close()
	}
	d.background.Wait()
	return err
}

// setClosed returns false if the endpoint has been closed before.
func (d *datagrams) setClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	wasClosed := d.closed
	d.closed = true
	return !wasClosed
}
