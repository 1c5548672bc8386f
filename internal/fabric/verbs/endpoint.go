//go:build linux && cgo

package verbs

// What an endpoint is made of, and how it is made.

import (
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
)

const (
	// minRNRTimer is the code for 0.64 ms (InfiniBand specification, 9.7.5.2.8,
	// table 45). rdma_cm would leave 0, which is 655 ms.
	minRNRTimer = 12

	// rnrRetries, 7, makes the device repeat without end a send that found no receive
	// posted (InfiniBand specification, 9.7.5.2.8). Ringnet never sends without a
	// receive to take it, but the peer's device may be slow to see one that has just
	// been posted, and with fewer retries that alone would end the connection. The
	// devices' counters show how often it has happened. If a peer posts no receives, the
	// keepalive probe, which waits behind such a send, ends the connection.
	rnrRetries = 7
)

// endpoint implements [fabric.Endpoint].
type endpoint struct {
	rdmacore.QueuePair
	options   fabric.Options
	contacted bool   // the peer's request or answer has arrived
	private   []byte // of the peer's request

	inline []byte // registered: see inlineSlot
	key    uint32 // of inline
	posted uint64 // work requests
	in     inbox  // Sends: see mailbox.go
	out    outbox
}

var _ fabric.Mover = (*endpoint)(nil)

func newEndpoint(id *rdmacore.ID) *endpoint {
	return &endpoint{QueuePair: rdmacore.QueuePair{ID: id}}
}

func (e *endpoint) LocalAddr() netip.AddrPort  { return e.ID.LocalAddr() }
func (e *endpoint) RemoteAddr() netip.AddrPort { return e.ID.RemoteAddr() }
func (e *endpoint) Private() []byte            { return e.private }

// Open implements [fabric.Endpoint].
func (e *endpoint) Open(o fabric.Options) (fabric.Limits, error) {
	if o.SendQueue < 1 || o.RecvQueue < 1 || o.RecvSize < 1 || o.Sends < 1 || o.Retries < 0 || o.Retries > 7 {
		return fabric.Limits{}, fmt.Errorf("queue pair options %+v: %w", o, syscall.EINVAL)
	}
	if err := e.OpenDevice(); err != nil {
		return fabric.Limits{}, err
	}
	o.SendQueue, o.RecvQueue = e.Clamp(o.SendQueue, o.RecvQueue)
	e.options = o
	if err := e.createQueues(); err != nil {
		return fabric.Limits{}, err
	}
	if err := e.ToInit(); err != nil {
		return fabric.Limits{}, e.stateError(err)
	}
	if err := e.createMailbox(); err != nil {
		return fabric.Limits{}, err
	}
	if err := e.createQueue(); err != nil {
		return fabric.Limits{}, err
	}
	return fabric.Limits{
		SendQueue: e.options.SendQueue,
		RecvQueue: e.options.RecvQueue,
		Inline:    e.Inline(),
		Spin:      rdmacore.Spin,
		Transport: e.ID.Transport(),
	}, nil
}

// recvBit in a completion's ID marks a receive: a failed completion has no other valid field that
// tells a receive from a send.
const recvBit = fabric.MaxID + 1

// pollBatch is the maximum number of completions that one Poll takes.
const pollBatch = 64

// createQueue allocates the data path. Receives have no buffers: see mailbox.go.
func (e *endpoint) createQueue() error {
	sends, recvs := e.options.SendQueue, e.options.RecvQueue
	if e.Inline() > 0 {
		m, err := e.QueuePair.Register(sends*e.Inline(), rdmacore.LocalWrite)
		if err != nil {
			return err
		}
		e.inline, e.key = m.Bytes(), m.LKey()
	}
	return e.NewQueue(rdmacore.QueueOptions{
		WCs:      min(pollBatch, sends+recvs),
		Sends:    sends,
		Recvs:    recvs,
		RecvMask: recvBit,
	})
}

// ackTimeout is the smallest n from 1 to 31 with 4.096 µs * 2^n >= d, or 31 if there is
// none. 0 would mean to wait without end.
func ackTimeout(d time.Duration) uint8 {
	const unit = 4096 * time.Nanosecond
	units := max((d+unit-1)/unit, 2)
	return uint8(min(bits.Len64(uint64(units-1)), 31))
}

// open returns net.ErrClosed unless Open has succeeded, and Close has not been called.
func (e *endpoint) open() error {
	if e.Queue == nil {
		return net.ErrClosed
	}
	return nil
}
