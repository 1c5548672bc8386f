// Package direct connects two queue pairs of one process at the least possible cost:
// PostSend writes to the other side's memory and completion queue. Benchmarks use it to
// measure what a connection costs besides its device. It trusts both sides: it checks
// neither keys nor posted receives.
package direct

import (
	"context"
	"math/bits"
	"net/netip"
	"sync/atomic"

	"github.com/ringnet/ringnet/internal/fabric"
)

// end implements [fabric.Endpoint].
type end struct {
	peer   *end
	addr   netip.AddrPort
	hello  chan []byte // the private data for this side
	bell   chan struct{}
	change chan error

	rings [256]memory // what the peer writes to, by key
	made  uint32      // of those
	receives
	sent uint64 // messages to the peer

	arrived completionQueue // filled by the peer
	done    completionQueue // of this side's sends
	armed   atomic.Bool
	failed  bool
}

// receives are an end's.
type receives struct {
	recvSize int
	buffers  []byte // recvSize bytes for each receive
	posted   uint64
	polled   uint64
}

// completionQueue is one that a goroutine at a time adds to, and one takes from.
type completionQueue struct {
	entries []fabric.Completion // a power of two
	head    uint64
	tail    atomic.Uint64
}

func (q *completionQueue) init(depth int) {
	q.entries = make([]fabric.Completion, 1<<bits.Len(uint(depth-1)))
}

// slot is the place of the completion with a position, counted from 0.
func (q *completionQueue) slot(pos uint64) *fabric.Completion {
	return &q.entries[pos&uint64(len(q.entries)-1)]
}

func (q *completionQueue) take(c []fabric.Completion) int {
	n := min(len(c), int(q.tail.Load()-q.head))
	for i := range n {
		c[i] = *q.slot(q.head + uint64(i))
	}
	q.head += uint64(n)
	return n
}

// Pair returns two endpoints connected to each other: the dialing side and the
// listening side.
func Pair() (dialing, listening fabric.Endpoint) {
	ends := [2]*end{}
	for i := range ends {
		ends[i] = &end{
			addr:   netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 1),
			hello:  make(chan []byte, 1),
			bell:   make(chan struct{}, 1),
			change: make(chan error, 2),
		}
	}
	ends[0].peer, ends[1].peer = ends[1], ends[0]
	return ends[0], ends[1]
}

func (e *end) LocalAddr() netip.AddrPort  { return e.addr }
func (e *end) RemoteAddr() netip.AddrPort { return e.peer.addr }

func (e *end) Open(o fabric.Options) (fabric.Limits, error) {
	e.recvSize = o.RecvSize
	e.buffers = make([]byte, o.RecvQueue*o.RecvSize)
	e.arrived.init(o.RecvQueue)
	e.done.init(o.SendQueue)
	return fabric.Limits{SendQueue: o.SendQueue, RecvQueue: o.RecvQueue, Inline: 1 << 30, Spin: 100}, nil
}

type memory struct {
	bytes []byte
	key   uint32
}

func (m memory) Bytes() []byte { return m.bytes }
func (m memory) Addr() uint64  { return 0 }
func (m memory) RKey() uint32  { return m.key }
func (m memory) Free() bool    { return false }
func (m memory) Keep()         {} // it is on the heap

func (e *end) Register(n int, a fabric.Access) (fabric.Memory, error) {
	m := memory{bytes: make([]byte, n), key: e.made}
	if a == fabric.RemoteWrite {
		e.rings[e.made] = m
		e.made++
	}
	return m, nil
}

func (e *end) Footprint(o fabric.Options) fabric.Footprint {
	return fabric.Footprint{Receives: o.RecvQueue * o.RecvSize}
}

func (e *end) Reach(uint64, uint32, int) error { return nil }

func (e *end) PostRecv(n int) error {
	e.posted += uint64(n)
	return nil
}

func (e *end) PostSend(wr []fabric.WorkRequest) error {
	p := e.peer
	for i := range wr {
		w := &wr[i]
		if w.Op != fabric.Send {
			w.CopyTo(p.rings[w.RKey].bytes[w.RemoteAddr:])
		}
		if w.Op != fabric.Write {
			c := p.arrived.slot(e.sent)
			*c = fabric.Completion{Recv: true, Op: w.Op, Imm: w.Imm, Len: w.Len()}
			if w.Op == fabric.Send {
				at := int(e.sent%uint64(len(p.buffers)/p.recvSize)) * p.recvSize
				c.Data = p.buffers[at : at+w.CopyTo(p.buffers[at:])]
			}
			e.sent++
		}
		if w.Signaled {
			tail := e.done.tail.Load()
			*e.done.slot(tail) = fabric.Completion{ID: w.ID}
			e.done.tail.Store(tail + 1)
			e.event()
		}
	}
	p.arrived.tail.Store(e.sent)
	p.event()
	return nil
}

func (e *end) event() {
	if e.armed.Load() && e.armed.Swap(false) {
		e.Wake()
	}
}

func (e *end) Poll(c []fabric.Completion) (int, error) {
	n := e.done.take(c)
	r := e.arrived.take(c[n:])
	e.polled += uint64(r)
	n += r
	for ; e.failed && n < len(c) && e.polled < e.posted; n++ {
		c[n] = fabric.Completion{Recv: true, Status: fabric.Flushed}
		e.polled++
	}
	return n, nil
}

func (e *end) Arm() error {
	e.armed.Store(true)
	return nil
}

func (e *end) Wait() error {
	select {
	case err := <-e.change:
		return err
	case <-e.bell:
		return nil
	}
}

func (e *end) Wake() {
	select {
	case e.bell <- struct{}{}:
	default:
	}
}

func (e *end) Connect(_ context.Context, private []byte) ([]byte, error) {
	e.peer.hello <- private
	return <-e.hello, nil
}

func (e *end) Confirm() error { return nil }

// Private waits for the peer to connect.
func (e *end) Private() []byte { return <-e.hello }

func (e *end) Accept(_ context.Context, private []byte) error {
	e.peer.hello <- private
	return nil
}

func (e *end) Reject(private []byte) error { return nil }

func (e *end) Disconnect() error {
	if e.failed {
		return nil
	}
	e.failed = true
	e.event()
	for _, side := range []*end{e, e.peer} {
		select {
		case side.change <- fabric.ErrDisconnected:
		default:
		}
	}
	return nil
}

func (e *end) Close() error { return nil }
