// What a queue pair for datagrams sends, and how the link carries it.

package sim

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

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

// send sends one datagram, and returns its status.
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

// carry brings a datagram to a card and a receive queue there: not at all, once or
// twice, and late, as Link says. The caller holds mu.
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
			if !n.cables.severed(x.From.Addr(), card) {
				to.arrive(x)
			}
		})
	}
}
