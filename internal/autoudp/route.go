//go:build unix

package autoudp

import (
	"context"
	"net/netip"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// route is how an endpoint reaches an address. It implements [fabric.AddressHandle].
// Guarded by endpoint.mu, but for the first three.
type route struct {
	e      *endpoint
	to     netip.AddrPort
	cancel context.CancelFunc // ends a search

	carrier  *carrier             // nil: UDP
	handle   fabric.AddressHandle // of the carrier
	proven   time.Time            // when the last proof of it began
	sequence uint32               // of the next datagram by it
	searched time.Time            // when the last search began
	search   bool                 // one is under way
	closed   bool
	proof    *proof // of a carrier, that is under way
	ctx      context.Context
}

// searchAgain is how long a route stays as it is: then, with the next datagram, UDP looks for a
// better carrier, and a carrier is proven again.
const searchAgain = 30 * time.Second

// resolveWithin is how long a carrier may take to find the receiver.
const resolveWithin = 5 * time.Second

// Resolve implements [fabric.DatagramEndpoint]. UDP reaches every address.
func (e *endpoint) Resolve(_ context.Context, to netip.AddrPort) (fabric.AddressHandle, error) {
	r := &route{e: e, to: to}
	r.ctx, r.cancel = context.WithCancel(e.ctx)
	return r, nil
}

// carrierFor returns the carrier by which a datagram is to go, or nil for UDP. Called with mu held.
func (r *route) carrierFor(d *fabric.Datagram) *carrier {
	now := time.Now()
	if !r.search && now.Sub(r.searched) > searchAgain && len(r.e.carriers) > 0 && !r.to.Addr().IsMulticast() {
		r.search, r.searched = true, now
		r.e.work.Go(r.find)
	}
	if r.carrier == nil || fabric.Size(d.Buffers) > r.carrier.max || r.proof != nil && r.proof.wants() || now.Sub(r.proven) > proofLasts/4*3 {
		return nil
	}
	return r.carrier
}

// find proves the carrier of the route, or looks for one.
func (r *route) find() {
	began := time.Now()
	r.e.mu.Lock()
	c, h := r.carrier, r.handle
	r.e.mu.Unlock()
	if c == nil {
		c, h = r.findCarrier()
	} else if !r.prove(c, h) {
		c, h = nil, nil
	}
	r.e.sending.Lock()
	defer r.e.sending.Unlock()
	r.e.mu.Lock()
	before := r.handle
	r.carrier, r.handle, r.proven, r.search = c, h, began, false
	if before != h {
		r.sequence = 0
	}
	closed := r.closed
	r.e.mu.Unlock()
	if before != nil && before != h {
		before.Close()
	}
	if closed && h != nil {
		h.Close()
	}
}

// findCarrier looks for a carrier whose receiver at the address is that of UDP.
func (r *route) findCarrier() (*carrier, fabric.AddressHandle) {
	for _, c := range r.e.carriers {
		ctx, cancel := context.WithTimeout(r.ctx, resolveWithin)
		h, err := c.endpoint.Resolve(ctx, r.to)
		cancel()
		if err != nil {
			continue
		}
		if r.prove(c, h) && r.ctx.Err() == nil {
			return c, h
		}
		r.e.sending.Lock()
		h.Close()
		r.e.sending.Unlock()
	}
	return nil, nil
}

// carrierEnded has UDP taken, because the carrier's handle has ended. Called with sending held.
func (r *route) carrierEnded(h fabric.AddressHandle) {
	r.e.mu.Lock()
	current := r.handle == h && !r.search // or the search closes it
	if r.handle == h {
		r.carrier = nil
	}
	if current {
		r.handle, r.searched = nil, time.Time{}
	}
	r.e.mu.Unlock()
	if current {
		h.Close()
	}
}

// sendByUDP sends a datagram by UDP. A proof under way takes note of it.
func (r *route) sendByUDP(d *fabric.Datagram) fabric.Status {
	r.e.mu.Lock()
	if r.proof != nil {
		r.proof.sent(d.Buffers)
	}
	r.e.mu.Unlock()
	d.ByUDP = true
	return r.e.socket.send(d.Buffers, r.to)
}

// Close implements [fabric.AddressHandle].
func (r *route) Close() {
	r.cancel()
	r.e.sending.Lock()
	defer r.e.sending.Unlock()
	r.e.mu.Lock()
	r.closed = true
	h := r.handle
	if r.search {
		h = nil // the search closes it
	} else {
		r.carrier, r.handle = nil, nil
	}
	r.e.mu.Unlock()
	if h != nil {
		h.Close()
	}
}
