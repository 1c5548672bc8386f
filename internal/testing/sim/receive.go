// The receive queue, and what a message does on arrival.

package sim

import (
	"fmt"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
)

// recvQueue is an endpoint's. Positions count receives since Open.
type recvQueue struct {
	buffers    []byte // Options.RecvSize for each receive
	recvLen    []int  // how many bytes of each buffer the last message has used
	recvPosted uint64
	recvDone   uint64 // consumed by a message, or flushed
	recvPolled uint64 // completion returned by Poll
	recvStale  uint64 // buffer poisoned

	expected uint64 // position, in the peer's send queue, of the next message
}

// PostRecv implements [fabric.Endpoint]. It poisons the data of completions that Poll has
// returned.
func (e *Endpoint) PostRecv(n int) error {
	if f := e.n.faults.Load().PostRecv; f != nil {
		if err := f(e, n); err != nil {
			return err
		}
	}
	e.turn++
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("PostRecv")
	if e.qp == reset || n < 0 {
		return fmt.Errorf("sim: post %d receives: %w", n, syscall.EINVAL)
	}
	if e.recvPosted-e.recvPolled+uint64(n) > uint64(e.limits.RecvQueue) {
		return fmt.Errorf("sim: post %d receives to a full queue: %w", n, syscall.ENOMEM)
	}
	for ; e.recvStale < e.recvPolled; e.recvStale++ {
		used := &e.recvLen[e.recvStale%uint64(len(e.recvLen))]
		poison(e.buffer(e.recvStale)[:*used])
		*used = 0
	}
	e.recvPosted += uint64(n)
	if e.qp == failed {
		e.flushRecvs()
	}
	return nil
}

// buffer is the buffer of the receive at a position.
func (e *Endpoint) buffer(pos uint64) []byte {
	i, size := int(pos%uint64(len(e.recvLen))), e.options.RecvSize
	return e.buffers[i*size : (i+1)*size]
}

// execute executes a request of the peer's, and returns the status with which it completes
// there.
func (e *Endpoint) execute(wr *fabric.WorkRequest) fabric.Status {
	if wr.Op != fabric.Write && e.recvDone == e.recvPosted {
		e.n.rnr.Add(1)
		return fabric.RNRRetryExceeded
	}
	x := entry{Completion: fabric.Completion{Recv: true, Op: wr.Op, Len: len(wr.Data)}, pos: e.recvDone}
	switch wr.Op {
	case fabric.Send:
		b := e.buffer(e.recvDone)
		if len(wr.Data) > len(b) {
			e.recvDone++
			x.Completion = fabric.Completion{Recv: true, Status: fabric.LocalLength}
			e.complete(x)
			e.fail()
			return fabric.RemoteInvalidRequest
		}
		x.Data = b[:copy(b, wr.Data)]
		e.recvLen[e.recvDone%uint64(len(e.recvLen))] = len(x.Data)
	default:
		if !e.place(wr.Data, wr.RemoteAddr, wr.RKey) {
			e.change(fmt.Errorf("sim: access violation by the peer: %w", fabric.ErrQueuePair))
			e.fail()
			return fabric.RemoteAccess
		}
		if wr.Op == fabric.Write {
			return fabric.OK
		}
		x.Imm = wr.Imm
	}
	e.recvDone++
	e.complete(x)
	return fabric.OK
}

// flushRecvs completes all posted receives without success.
func (e *Endpoint) flushRecvs() {
	for e.recvDone < e.recvPosted {
		x := entry{Completion: fabric.Completion{Recv: true, Status: fabric.Flushed}, pos: e.recvDone}
		e.recvDone++
		e.complete(x)
	}
}
