// Queue pairs for datagrams, which send to any number of others and receive from
// them. What is lost, comes twice or late is as the link has it; what finds a
// receive queue full is lost, too. Senders are told when a queue pair ends, as
// those over verbs are (docs/protocol.md, section 12.2).

package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
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

// packets is what all that has to do with datagrams shares.
type packets struct {
	agenda // whose mu guards what follows, and the endpoints and handles

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

// datagrams implements [fabric.DatagramEndpoint].
type datagrams struct {
	n      *Network
	local  netip.AddrPort
	filter func(*fabric.Datagram) bool
	notify func()
	lost   func(error)

	// As Endpoint.turn, of Send and of Receive.
	sendTurn, recvTurn int

	// Guarded by packets.mu.
	recvQueue int
	queues    []*receiveQueue // its own, and one for each group
	armed     bool
	closed    bool
}

// receiveQueue has what was sent to an endpoint, or to a group at one of its cards.
type receiveQueue struct {
	d      *datagrams
	number uint64 // of those of the network
	membership
	waiting []fabric.Datagram // one buffer each
	ended   bool
}

// membership is that of a group at a card; the zero one is of none.
type membership struct {
	group netip.AddrPort
	card  netip.Addr
}

// addressHandle implements [fabric.AddressHandle].
type addressHandle struct {
	from   *datagrams
	source netip.Addr // of what is sent
	to     netip.AddrPort

	// Guarded by packets.mu.
	receiver *datagrams // nil for a group
	gone     bool       // the sender knows that the receiver is
	closed   bool
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
	d.enter(membership{})
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

// Resolve implements [fabric.DatagramEndpoint].
func (d *datagrams) Resolve(ctx context.Context, to netip.AddrPort) (fabric.AddressHandle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if d.n.gone.Load() {
		return nil, fmt.Errorf("sim: resolve: %w", fabric.ErrDeviceRemoved)
	}
	h := &addressHandle{from: d, source: d.source(to), to: fabric.Plain(to)}
	answered := d.n.packets.ask(h)
	timer := time.NewTimer(d.n.link.CMTimeout)
	defer timer.Stop()
	var err error
	select {
	case err = <-answered:
	case <-timer.C:
		err = fmt.Errorf("sim: no answer: %w", syscall.ETIMEDOUT)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// ask asks who is at the address of a handle, unless that is a group. From when the
// request has arrived the receiver knows of the handle.
func (p *packets) ask(h *addressHandle) <-chan error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.from.use("Resolve")
	p.handles = append(p.handles, h)
	n := h.from.n
	answered := make(chan error, 1)
	if h.to.Addr().IsMulticast() {
		answered <- nil
		return answered
	}
	p.after(n.link.Latency, func() {
		if n.severed(h.source, h.to.Addr()) || n.swallows(h.to.Addr()) {
			return
		}
		var answer error
		if h.receiver = p.at(h.to); h.receiver == nil {
			answer = &fabric.RejectError{Reason: fabric.RejectNoListener}
		}
		p.after(n.link.Latency, func() {
			if !n.severed(h.source, h.to.Addr()) {
				answered <- answer
			}
		})
	})
	return answered
}

// at is the endpoint that has what is sent to an address, or nil.
func (p *packets) at(a netip.AddrPort) *datagrams {
	for _, d := range p.endpoints {
		if d.local.Port() == a.Port() && covers(d.local.Addr(), a.Addr()) {
			return d
		}
	}
	return nil
}

// Send implements [fabric.DatagramEndpoint].
func (d *datagrams) Send(ds []fabric.Datagram) {
	d.sendTurn++
	d.n.packets.mu.Lock()
	defer d.n.packets.mu.Unlock()
	d.use("Send")
	for i := range ds {
		ds[i].Status = d.send(&ds[i])
	}
}

func (d *datagrams) send(sent *fabric.Datagram) fabric.Status {
	h := sent.To.(*addressHandle)
	switch {
	case h.closed || h.from != d:
		panic("sim: Send to an address handle that is closed, or another's")
	case h.gone || d.n.gone.Load():
		return fabric.Flushed
	}
	data := slices.Concat(sent.Buffers...)
	if len(data) > mtu-fabric.HeaderSize {
		panic("sim: Send of a datagram that is too long")
	}
	x := fabric.Datagram{
		Header:  sent.Header,
		From:    netip.AddrPortFrom(h.source, d.local.Port()),
		Via:     fabric.Via{To: h.to.Addr()},
		Buffers: [][]byte{data},
	}
	p := &d.n.packets
	if h.receiver != nil {
		p.carry(x, h.receiver.queues[0], h.to.Addr())
		return fabric.OK
	}
	for _, to := range p.endpoints {
		for _, q := range to.queues {
			if q.group == h.to {
				p.carry(x, q, q.card)
			}
		}
	}
	return fabric.OK
}

// carry brings a datagram to a card and a receive queue there, as often and as late as
// the link has it.
func (p *packets) carry(x fabric.Datagram, to *receiveQueue, card netip.Addr) {
	n := to.d.n
	times := 1
	switch luck := p.rng.Float64(); {
	case luck < n.link.Loss:
		return
	case luck < n.link.Loss+n.link.Duplicates:
		times = 2
	}
	for range times {
		late := time.Duration(0)
		if n.link.Reordering > 0 {
			late = time.Duration(p.rng.Int64N(int64(n.link.Reordering) + 1))
		}
		p.after(n.link.Latency+late, func() {
			if !n.severed(x.From.Addr(), card) {
				to.arrive(x)
			}
		})
	}
}

// arrive puts a datagram into the queue.
func (q *receiveQueue) arrive(x fabric.Datagram) {
	d := q.d
	switch {
	case q.ended:
		return
	case len(q.waiting) >= d.recvQueue:
		d.n.packets.overruns++
		return
	}
	x.Via.Queue = q.number
	q.waiting = append(q.waiting, x)
	if d.armed {
		d.armed = false
		d.notify()
	}
}

// enter makes a receive queue.
func (d *datagrams) enter(m membership) {
	p := &d.n.packets
	p.queues++
	d.queues = append(d.queues, &receiveQueue{d: d, number: p.queues, membership: m})
}

// end has nothing arrive any more. What has is lost.
func (q *receiveQueue) end() { q.ended, q.waiting = true, nil }

// Join implements [fabric.DatagramEndpoint].
func (d *datagrams) Join(ctx context.Context, group netip.AddrPort, card netip.Addr) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m := d.membership(group, card)
	d.n.packets.mu.Lock()
	defer d.n.packets.mu.Unlock()
	switch {
	case d.closed:
		return net.ErrClosed
	case d.n.gone.Load():
		return fmt.Errorf("sim: join: %w", fabric.ErrDeviceRemoved)
	case !group.Addr().IsMulticast() || group.Port() == 0:
		return fmt.Errorf("sim: join %v: %w", group, syscall.EINVAL)
	case d.member(m) >= 0:
		return fmt.Errorf("sim: join %v at %v: %w", group, m.card, syscall.EADDRINUSE)
	}
	d.enter(m)
	return nil
}

// Leave implements [fabric.DatagramEndpoint].
func (d *datagrams) Leave(group netip.AddrPort, card netip.Addr) error {
	m := d.membership(group, card)
	d.n.packets.mu.Lock()
	defer d.n.packets.mu.Unlock()
	i := d.member(m)
	if i < 0 {
		return fmt.Errorf("sim: leave %v at %v: %w", group, m.card, syscall.EADDRNOTAVAIL)
	}
	d.queues[i].end()
	d.queues = slices.Delete(d.queues, i, i+1)
	return nil
}

// member is the index of a membership's receive queue, or negative.
func (d *datagrams) member(m membership) int {
	return slices.IndexFunc(d.queues, func(q *receiveQueue) bool { return q.membership == m })
}

// membership is that at a card, or at the one that datagrams to the group are sent from.
func (d *datagrams) membership(group netip.AddrPort, card netip.Addr) membership {
	if !card.IsValid() {
		card = d.source(group)
	}
	return membership{fabric.Plain(group), card.Unmap()}
}

// Receive implements [fabric.DatagramEndpoint]. Each call begins with another queue than
// the last.
func (d *datagrams) Receive(ds []fabric.Datagram) (n int) {
	d.recvTurn++
	for n < len(ds) {
		x, ok := d.next()
		if !ok {
			break
		}
		if d.take(&ds[n], x) {
			n++
		}
	}
	return n
}

// next takes what comes next from the receive queues.
func (d *datagrams) next() (x fabric.Datagram, ok bool) {
	d.n.packets.mu.Lock()
	defer d.n.packets.mu.Unlock()
	for i := range d.queues {
		q := d.queues[(d.recvTurn+i)%len(d.queues)]
		if len(q.waiting) > 0 {
			x, q.waiting = q.waiting[0], q.waiting[1:]
			return x, true
		}
	}
	return x, false
}

// take copies what has arrived, if it is wanted.
func (d *datagrams) take(to *fabric.Datagram, x fabric.Datagram) (wanted bool) {
	rest := x.Buffers[0]
	to.Header, to.From, to.Via, to.Len = x.Header, x.From, x.Via, len(rest)
	if !d.filter(to) {
		return false
	}
	for _, part := range to.Buffers {
		rest = rest[copy(part, rest):]
	}
	return true
}

// Arm implements [fabric.DatagramEndpoint].
func (d *datagrams) Arm() {
	d.n.packets.mu.Lock()
	defer d.n.packets.mu.Unlock()
	d.armed = true
}

// Close implements [fabric.DatagramEndpoint]. It waits as long as a notice to the
// senders and its answer take.
func (d *datagrams) Close() error {
	senders, err := d.shut()
	if senders > 0 {
		time.Sleep(min(2*d.n.link.Latency, tellWithin))
	}
	return err
}

// shut has nothing arrive any more, and says how many senders there are, which are told.
// Who of them cannot be reached finds out later.
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
			if d.n.severed(h.source, h.to.Addr()) {
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

// Close implements [fabric.AddressHandle].
func (h *addressHandle) Close() {
	p := &h.from.n.packets
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.closed {
		panic("sim: Close of an address handle that is closed")
	}
	h.closed = true
	p.handles = slices.DeleteFunc(p.handles, func(other *addressHandle) bool { return other == h })
}
