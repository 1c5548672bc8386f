// What a queue pair for datagrams sends, and how the link carries it.

package datagram

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Send implements [fabric.DatagramEndpoint].
func (d *endpoint) Send(ds []fabric.Datagram) {
	d.sendTurn++
	d.n.mu.Lock()
	defer d.n.mu.Unlock()
	d.use("Send")
	for i := range ds {
		ds[i].Status = d.send(&ds[i])
	}
}

// send sends one datagram, and returns its status.
func (d *endpoint) send(sent *fabric.Datagram) fabric.Status {
	h := sent.To.(*addressHandle)
	switch {
	case h.closed || h.from != d:
		panic("sim: Send to an address handle that is closed, or another's")
	case h.gone || d.n.Removed():
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
	if h.receiver != nil {
		d.n.carry(x, h.receiver.queues[0], h.to.Addr())
		return fabric.OK
	}
	for _, to := range d.n.endpoints {
		for _, q := range to.queues {
			if q.group == h.to {
				d.n.carry(x, q, q.card)
			}
		}
	}
	return fabric.OK
}

// carry brings a datagram to a card and a receive queue there: not at all, once or
// twice, and late, as Link says. The caller holds mu.
func (n *Network) carry(x fabric.Datagram, to *receiveQueue, card netip.Addr) {
	times := 1
	switch luck := n.rng.Float64(); {
	case luck < n.link.Loss:
		return
	case luck < n.link.Loss+n.link.Duplicates:
		times = 2
	}
	for range times {
		late := time.Duration(0)
		if n.link.Reordering > 0 {
			late = time.Duration(n.rng.Int64N(int64(n.link.Reordering) + 1))
		}
		n.agenda.After(n.link.Latency+late, func() {
			if !n.Severed(x.From.Addr(), card) {
				to.arrive(x)
			}
		})
	}
}
