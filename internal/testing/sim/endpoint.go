// One end of a connection: its life from Open to Close.

package sim

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
)

// side says who asked for a connection. What it sends is one direction of the link.
type side int

const (
	active side = iota
	passive
)

// qpState is the state of a queue pair (InfiniBand specification, 10.3.1).
type qpState int

const (
	reset  qpState = iota // not made yet
	ready                 // INIT
	rtr                   // ready to receive
	rts                   // ready to send
	failed                // ERR
)

// Endpoint is a [fabric.Endpoint]; its further methods are faults, which anyone
// may command at any time, also after Close.
//
// It panics on what would crash a process with a real device: a use after
// Close, a Close during Wait, two Waits at once.
type Endpoint struct {
	n             *Network
	c             *conn
	side          side
	local, remote netip.AddrPort

	// turn is written without a lock by every call that may not run at the
	// same time as another, so that the race detector reports those that do;
	// sendTurn by PostSend, which may run at the same time as those.
	turn, sendTurn int

	// Guarded by c.mu, which the caller of a method that is not exported holds: the
	// methods that take it say so.
	peer   *Endpoint // nil until the request has arrived
	closed bool
	memory []*Memory
	manager
	queuePair
	completionQueue
}

// queuePair is an endpoint's.
type queuePair struct {
	qp        qpState
	options   fabric.Options // from Open on
	limits    fabric.Limits  // from Open on
	unflushed bool           // in ERR, it does not give back what was posted
	sendQueue
	recvQueue
}

var _ fabric.Mover = (*Endpoint)(nil)

func newEndpoint(n *Network, c *conn, local, remote netip.AddrPort, s side, id uint64) *Endpoint {
	e := &Endpoint{n: n, c: c, side: s, local: local, remote: remote}
	e.answer = make(chan struct{}, 1)
	e.bell = make(chan struct{}, 1)
	if n.link.Jitter > 0 {
		e.rng = rand.New(rand.NewPCG(n.link.Seed, id))
	}
	return e
}

// LocalAddr implements [fabric.Endpoint].
func (e *Endpoint) LocalAddr() netip.AddrPort { return e.local }

// RemoteAddr implements [fabric.Endpoint].
func (e *Endpoint) RemoteAddr() netip.AddrPort { return e.remote }

// Footprint implements [fabric.Endpoint].
func (e *Endpoint) Footprint(o fabric.Options) fabric.Footprint {
	return fabric.Footprint{Receives: o.RecvQueue * o.RecvSize}
}

// Open implements [fabric.Endpoint].
func (e *Endpoint) Open(o fabric.Options) (fabric.Limits, error) {
	if f := e.n.faults.Load().Open; f != nil {
		if err := f(e); err != nil {
			return fabric.Limits{}, err
		}
	}
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("Open")
	if e.n.gone.Load() {
		return fabric.Limits{}, fmt.Errorf("sim: open: %w", fabric.ErrDeviceRemoved)
	}
	if e.qp != reset || o.SendQueue <= 0 || o.RecvQueue <= 0 || o.RecvSize < 0 || o.AckTimeout < 0 || o.Retries < 0 || o.Retries > 7 {
		return fabric.Limits{}, fmt.Errorf("sim: open: %w", syscall.EINVAL)
	}
	l := e.n.link
	e.limits = fabric.Limits{
		SendQueue:    min(o.SendQueue, l.SendQueue),
		RecvQueue:    min(o.RecvQueue, l.RecvQueue),
		Inline:       l.Inline,
		SharesMemory: l.Inline >= 64<<10,
		Spin:         l.Spin,
	}
	e.options = o
	e.sends = make([]send, e.limits.SendQueue)
	e.recvLen = make([]int, e.limits.RecvQueue)
	e.buffers = make([]byte, e.limits.RecvQueue*o.RecvSize)
	e.ring = make([]entry, e.limits.SendQueue+e.limits.RecvQueue)
	e.qp = ready
	return e.limits, nil
}

// Close implements [fabric.Endpoint]. The peer is told as by Disconnect, or
// refused.
func (e *Endpoint) Close() error {
	if f := e.n.faults.Load().Close; f != nil {
		f(e)
	}
	if err := e.destroy(); err != nil {
		return err
	}
	e.n.forget(e)
	return nil
}

// destroy does the work of Close, and takes c.mu.
func (e *Endpoint) destroy() error {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	if e.closed {
		return net.ErrClosed
	}
	if e.waiting {
		panic("sim: Close during Wait")
	}
	if e.awaiting {
		panic("sim: Close during Connect or Accept")
	}
	e.fail()
	e.part()
	e.closed = true
	e.ready.Add(1) // so that Poll looks, and panics
	for _, m := range e.memory {
		poison(m.bytes)
	}
	poison(e.buffers)
	if e.peer != nil && e.peer.closed {
		e.c.agenda.stop()
	}
	return nil
}

// use panics after Close.
func (e *Endpoint) use(method string) {
	if e.closed {
		panic("sim: " + method + " after Close")
	}
}

// fail moves the queue pair to ERR, which flushes all that is posted, as far as
// the faults let it.
func (e *Endpoint) fail() {
	if e.qp == failed {
		return
	}
	e.qp = failed
	unflushed := e.n.faults.Load().Unflushed
	e.unflushed = unflushed != nil && unflushed(e)
	e.flushSends()
	e.flushRecvs()
}
