//go:build linux && cgo

package ud

// An endpoint: its queue pairs, and how it is made and closed.

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/rdmacore"
	"github.com/ringnet/ringnet/internal/wire"
)

const (
	// maxRecvQueue is the maximum depth of a receive queue for datagrams.
	maxRecvQueue = 1 << 13

	// resolutionBacklog is the listener's backlog of requests.
	resolutionBacklog = 128

	// largestMTU is the largest MTU of InfiniBand, and of RoCE, in bytes.
	largestMTU = 4096
)

// endpoint implements [Endpoint].
type endpoint struct {
	cm       rdmacore.CM // in the port space UDP
	v6Only   bool        // local is the unspecified IPv6 address: no IPv4
	local    netip.AddrPort
	limits   Limits
	listener *rdmacore.Listener
	callbacks
	lifetime

	// queues is copied to be changed, with mu held. turn belongs to Receive.
	queues atomic.Pointer[[]*queuePair]
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

// callbacks are the functions of the endpoint's owner: see [Options].
type callbacks struct {
	filter func(*Datagram) bool
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
	_ Fabric   = rdma{}
	_ Endpoint = (*endpoint)(nil)
)

// rdma implements [Fabric].
type rdma struct{ cm rdmacore.CM }

// Open returns the fabric of RDMA devices. The traffic class is as ringnet.Config has it. Without RDMA
// the error wraps errors.ErrUnsupported and names what is missing; the next call tries again.
func Open(trafficClass int) (Fabric, error) {
	cm, err := rdmacore.Open(rdmacore.Config{Space: rdmacore.UDP, TrafficClass: trafficClass})
	if err != nil {
		return nil, err
	}
	return rdma{cm}, nil
}

// ListenPacket implements [Fabric].
func (f rdma) ListenPacket(local netip.AddrPort, o Options) (Endpoint, error) {
	budget.Process.Refresh()
	d := &endpoint{
		cm:        f.cm,
		v6Only:    local.Addr() == netip.IPv6Unspecified(),
		callbacks: callbacks{o.Filter, o.Notify, o.Lost},
		handles:   make(map[uint64]*addressHandle),
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.queues.Store(new([]*queuePair))
	d.recvQueue = clampRecvQueue(o.RecvQueue)
	l, err := f.cm.Listen(local, rdmacore.ListenOptions{
		Backlog: resolutionBacklog,
		Full:    wire.Full.Append(nil),
		Refusal: func(err error) []byte { return wire.Reject{Reason: err.Error()}.Append(nil) },
	})
	if err != nil {
		return nil, err
	}
	d.listener, d.local = l, l.Addr()
	d.limits = Limits{MaxMessage: largestMTU - HeaderSize, Spin: rdmacore.Spin}
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
func (d *endpoint) ports() (all []netip.Addr) {
	if a := d.local.Addr(); !a.IsUnspecified() {
		return []netip.Addr{a}
	}
	for _, port := range d.cm.Ports() {
		all = append(all, port[0])
	}
	return all
}

// LocalAddr implements [Endpoint].
func (d *endpoint) LocalAddr() netip.AddrPort { return d.local }

// Limits implements [Endpoint].
func (d *endpoint) Limits() Limits { return d.limits }

func clampRecvQueue(n int) int { return min(max(n, 1), maxRecvQueue) }

// SetRecvQueue implements [Endpoint]: it replaces the queue pairs that
// are not in use yet. If there is no memory for another, the next request makes one.
func (d *endpoint) SetRecvQueue(n int) {
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
func (d *endpoint) openQueue(local netip.Addr, m *membership) (*queuePair, error) {
	q, err := newQueuePair(d, local, m, d.recvQueue)
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
func (d *endpoint) add(q *queuePair) bool {
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
func (d *endpoint) queueFor(id *rdmacore.ID) (*queuePair, error) {
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
func (d *endpoint) queueAt(id *rdmacore.ID) *queuePair {
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
func (d *endpoint) remove(q *queuePair, ifUnused bool) bool {
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
func (d *endpoint) discard(q *queuePair) {
	if d.remove(q, false) {
		d.end(q)
	}
}

// fail marks a queue pair as failed, and replaces it: the next request makes another, or
// the membership gets another. It does so in the background, because its callers hold
// locks of the queue pair.
func (d *endpoint) fail(q *queuePair) {
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

// Send implements [Endpoint].
func (d *endpoint) Send(ds []Datagram) {
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

// Receive implements [Endpoint]. Each call begins with the next queue
// pair, so that a busy one does not keep it from the others.
func (d *endpoint) Receive(ds []Datagram) (n int) {
	queues := *d.queues.Load()
	d.turn++
	for i := 0; i < len(queues) && n < len(ds); i++ {
		n += queues[(d.turn+i)%len(queues)].receive(ds[n:])
	}
	return n
}

// Arm implements [Endpoint].
func (d *endpoint) Arm() {
	for _, q := range *d.queues.Load() {
		q.arm()
	}
}

// Close implements [Endpoint]. It notifies the senders of each queue
// pair, and waits for the endpoint's goroutines.
func (d *endpoint) Close() error {
	if !d.setClosed() {
		return net.ErrClosed
	}
	err := d.listener.Close()
	d.cancel()
	d.making.Lock() // those that make queue pairs have finished
	d.mu.Lock()
	queues, requests := *d.queues.Swap(new([]*queuePair)), d.requests
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
func (d *endpoint) setClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	wasClosed := d.closed
	d.closed = true
	return !wasClosed
}
