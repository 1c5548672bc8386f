// Whom a queue pair for datagrams sends to: address handles.

package datagram

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// addressHandle implements [fabric.AddressHandle].
type addressHandle struct {
	from   *endpoint
	source netip.Addr // of what is sent
	to     netip.AddrPort

	// Guarded by Network.mu.
	receiver *endpoint // nil for a group
	gone     bool      // the sender knows that the receiver is
	closed   bool
}

// Resolve implements [fabric.DatagramEndpoint].
func (d *endpoint) Resolve(ctx context.Context, to netip.AddrPort) (fabric.AddressHandle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if d.n.Removed() {
		return nil, fmt.Errorf("sim: resolve: %w", fabric.ErrDeviceRemoved)
	}
	h := &addressHandle{from: d, source: d.source(to), to: fabric.Plain(to)}
	answered := d.n.ask(h)
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
func (n *Network) ask(h *addressHandle) <-chan error {
	n.mu.Lock()
	defer n.mu.Unlock()
	h.from.use("Resolve")
	n.handles = append(n.handles, h)
	answered := make(chan error, 1)
	if h.to.Addr().IsMulticast() {
		answered <- nil
		return answered
	}
	n.agenda.After(n.link.Latency, func() {
		if n.Severed(h.source, h.to.Addr()) || n.Swallows(h.to.Addr()) {
			return
		}
		var answer error
		if h.receiver = n.at(h.to); h.receiver == nil {
			answer = &fabric.RejectError{Reason: fabric.RejectNoListener}
		}
		n.agenda.After(n.link.Latency, func() {
			if !n.Severed(h.source, h.to.Addr()) {
				answered <- answer
			}
		})
	})
	return answered
}

// at returns the endpoint that receives what is sent to an address, or nil. The caller
// holds mu.
func (n *Network) at(a netip.AddrPort) *endpoint {
	for _, d := range n.endpoints {
		if d.local.Port() == a.Port() && sim.Covers(d.local.Addr(), a.Addr()) {
			return d
		}
	}
	return nil
}

// Close implements [fabric.AddressHandle].
func (h *addressHandle) Close() {
	n := h.from.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.closed {
		panic("sim: Close of an address handle that is closed")
	}
	h.closed = true
	n.handles = slices.DeleteFunc(n.handles, func(other *addressHandle) bool { return other == h })
}
