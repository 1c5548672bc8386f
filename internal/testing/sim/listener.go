// The passive half of the connection manager: requests on their way to Accept.

package sim

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// Listener is a [fabric.Listener].
type Listener struct {
	n       *Network
	addr    netip.AddrPort
	backlog int

	// Guarded by n.mu.
	arrived sync.Cond
	queue   []*Endpoint
	closed  bool
}

var _ fabric.Listener = (*Listener)(nil)

// Listen implements [fabric.Fabric]. If the address of local is not valid or unspecified,
// the listener receives requests to every address of the network.
func (n *Network) Listen(local netip.AddrPort, backlog int) (fabric.Listener, error) {
	if n.gone.Load() {
		return nil, fmt.Errorf("sim: listen: %w", fabric.ErrDeviceRemoved)
	}

	n.mu.Lock()
	defer n.mu.Unlock()
	local, err := bind(wildcard(local), &n.lastPort, n.taken)
	if err != nil {
		return nil, fmt.Errorf("sim: listen at %v: %w", local, err)
	}
	l := &Listener{n: n, addr: local, backlog: backlog}
	l.arrived.L = &n.mu
	n.listeners = append(n.listeners, l)
	return l, nil
}

// Addr implements [fabric.Listener].
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// Accept implements [fabric.Listener].
func (l *Listener) Accept() (fabric.Endpoint, error) {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	for len(l.queue) == 0 && !l.closed {
		l.arrived.Wait()
	}
	if l.closed {
		return nil, net.ErrClosed
	}
	e := l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	return e, nil
}

// Close implements [fabric.Listener].
func (l *Listener) Close() error {
	l.n.mu.Lock()
	if l.closed {
		l.n.mu.Unlock()
		return net.ErrClosed
	}
	l.closed = true
	refused := l.queue
	l.queue = nil
	l.n.listeners = slices.DeleteFunc(l.n.listeners, func(x *Listener) bool { return x == l })
	l.arrived.Broadcast()
	l.n.mu.Unlock()

	for _, e := range refused {
		if err := e.Close(); err != nil {
			return err
		}
	}
	return nil
}

// request brings the connection request of e to its listener. The caller holds e.c.mu;
// request takes n.mu.
func (n *Network) request(e *Endpoint, private []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holes[e.remote.Addr()] {
		return
	}
	var to *Listener
	for _, l := range n.listeners {
		if l.addr == e.remote || to == nil && l.addr.Port() == e.remote.Port() && covers(l.addr.Addr(), e.remote.Addr()) {
			to = l
		}
	}
	reason, says := 0, []byte(nil)
	switch {
	case to == nil:
		reason = fabric.RejectNoListener
	case len(to.queue) >= to.backlog:
		reason, says = fabric.RejectConsumer, wire.Full.Append(nil)
	}
	if reason != 0 {
		e.c.carry(func() { e.refused(reason, says) })
		return
	}
	p := n.endpoint(e.c, e.remote, e.local, passive)
	p.move(requested)
	p.private = fabric.Padded(private, fabric.MaxConnectData)
	p.peer, e.peer = e, p
	to.queue = append(to.queue, p)
	to.arrived.Signal()
}
