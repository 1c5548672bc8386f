//go:build linux

package shm

// Datagrams: a queue pair that sends to many and receives from many.
//
// Each sender has a connection of its own to each receiver, made like any other, on
// which messages go one way only (datagramlane.go). So a sender that floods, breaks the protocol
// or dies costs the receiver only the datagrams from that sender, and one whose process
// may not connect cannot send. An address handle is such a connection. That it leads to
// the owner of an address follows from whose name the socket has (addr.go); the address
// that a sender claims is only checked to be this host's.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
)

const (
	// datagramSize is how many bytes a datagram has at most, its header included: as
	// many as the largest MTU of InfiniBand allows.
	datagramSize = 4096

	// maxDatagramQueue is how many datagrams a receive queue for one sender may hold.
	maxDatagramQueue = 1 << 13
)

// datagrams implements [fabric.DatagramEndpoint].
type datagrams struct {
	f          *shm // whose listeners have names for datagrams
	local      netip.AddrPort
	notify     func()
	filter     func(*fabric.Datagram) bool
	recvQueue  atomic.Int64
	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	goroutines sync.WaitGroup // the queue pair's goroutines
	reserving  sync.Mutex     // held by source.reserve; taken before mu

	mu     sync.Mutex // guards what follows, and the sources
	inlets []*inlet   // the one for local first; nil once the queue pair is closed
	inflow
}

// inlet is what senders connect to, for the local address or for a group.
type inlet struct {
	listener *listener
	group    netip.AddrPort // valid for one of a group
	cards    []netip.Addr   // at which the group has been joined
}

// destination is what an address handle leads to.
type destination interface {
	send(*fabric.Datagram) fabric.Status
}

var (
	_ fabric.Datagrams        = (*shm)(nil)
	_ fabric.DatagramEndpoint = (*datagrams)(nil)
)

// ListenPacket implements [fabric.Datagrams].
func (f *shm) ListenPacket(local netip.AddrPort, o fabric.DatagramOptions) (fabric.DatagramEndpoint, error) {
	budget.Process.Refresh()
	own := f.naming(datagramName)
	own.persistent = true
	l, err := own.Listen(local, maxRequests)
	if err != nil {
		return nil, err
	}
	d := &datagrams{f: own, local: l.Addr(), notify: o.Notify, filter: o.Filter}
	d.admitted.L = &d.mu
	d.SetRecvQueue(o.RecvQueue)
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.open(&inlet{listener: l.(*listener)})
	return d, nil
}

// open adds an inlet and starts to accept its senders. Called with mu held, or before any
// other goroutine has d.
func (d *datagrams) open(in *inlet) {
	d.inlets = append(d.inlets, in)
	d.goroutines.Go(func() { d.accept(in) })
}

// Source implements [fabric.Datagrams]. A remote address is this host's, and so is its
// own source.
func (f *shm) Source(remote netip.AddrPort) (netip.Addr, error) {
	if a := remote.Addr(); !a.IsMulticast() {
		return a, nil
	}
	return fabric.Loopback(remote.Addr()), nil
}

// LocalAddr implements [fabric.DatagramEndpoint].
func (d *datagrams) LocalAddr() netip.AddrPort { return d.local }

// DatagramLimits implements [fabric.DatagramEndpoint].
func (d *datagrams) DatagramLimits() fabric.DatagramLimits {
	return fabric.DatagramLimits{MaxMessage: datagramSize - fabric.HeaderSize, Spin: spin}
}

// SetRecvQueue implements [fabric.DatagramEndpoint]. It applies to senders that connect
// from now on.
func (d *datagrams) SetRecvQueue(n int) {
	d.recvQueue.Store(int64(min(max(n, 1), maxDatagramQueue)))
}

// Resolve implements [fabric.DatagramEndpoint]. It tries again while a receiver has no room.
func (d *datagrams) Resolve(ctx context.Context, to netip.AddrPort) (h fabric.AddressHandle, err error) {
	if to.Addr().IsMulticast() {
		return d.resolveGroup(ctx, fabric.Plain(to))
	}
	err = fabric.Patiently(ctx, func() error {
		h, err = d.resolve(ctx, to)
		return err
	})
	return h, err
}

// resolve is Resolve for a single receiver that has room.
func (d *datagrams) resolve(ctx context.Context, to netip.AddrPort) (fabric.AddressHandle, error) {
	e, err := d.f.newDialer(d.local, to)
	if err != nil {
		return nil, err
	}
	h, err := newHandle(ctx, e)
	if err != nil {
		return nil, err
	}
	d.goroutines.Go(h.watch)
	return h, nil
}

// newHandle connects an endpoint to a receiver, or closes it. This end receives nothing on it.
func newHandle(ctx context.Context, e *endpoint) (*handle, error) {
	_, err := e.Open(fabric.Options{SendQueue: 1, RecvQueue: 1})
	if err == nil {
		_, err = e.Connect(ctx, nil)
	}
	if err == nil && e.peer.recvSize != datagramSize {
		err = fmt.Errorf("the peer takes datagrams of %d bytes, want %d: %w", e.peer.recvSize, datagramSize, syscall.EPROTO)
	}
	if err == nil {
		err = e.Confirm()
	}
	if err != nil {
		_ = e.Close()
		return nil, err
	}
	return &handle{e: e}, nil
}

// Send implements [fabric.DatagramEndpoint].
func (d *datagrams) Send(ds []fabric.Datagram) {
	for i := range ds {
		ds[i].Status = ds[i].To.(destination).send(&ds[i])
	}
}

// Close implements [fabric.DatagramEndpoint]. A sender's next datagram fails.
func (d *datagrams) Close() error {
	d.mu.Lock()
	inlets := d.inlets
	d.inlets = nil
	for _, s := range d.sources {
		s.end()
	}
	d.mu.Unlock()
	if inlets == nil {
		return net.ErrClosed
	}
	d.cancel()
	var err error
	for _, in := range inlets {
		err = errors.Join(err, in.listener.Close())
	}
	d.goroutines.Wait()
	return err
}
