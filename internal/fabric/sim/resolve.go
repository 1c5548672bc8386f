// Whom a queue pair for datagrams sends to: address handles.

package sim

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

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

// ask sends a request to the address of a handle, unless that is a group, and returns
// where the answer will be. Once the request has arrived, the receiver knows of the
// handle. ask takes mu.
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
		if n.cables.severed(h.source, h.to.Addr()) || n.swallows(h.to.Addr()) {
			return
		}
		var answer error
		if h.receiver = p.at(h.to); h.receiver == nil {
			answer = &fabric.RejectError{Reason: fabric.RejectNoListener}
		}
		p.after(n.link.Latency, func() {
			if !n.cables.severed(h.source, h.to.Addr()) {
				answered <- answer
			}
		})
	})
	return answered
}

// at returns the endpoint that receives what is sent to an address, or nil. The caller
// holds mu.
func (p *packets) at(a netip.AddrPort) *datagrams {
	for _, d := range p.endpoints {
		if d.local.Port() == a.Port() && covers(d.local.Addr(), a.Addr()) {
			return d
		}
	}
	return nil
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
