// The connection manager of an endpoint: how two queue pairs find each other,
// and part. The messages are those of the InfiniBand CM (specification,
// chapter 12), sent once: one that is lost stands for all its repetitions.

package sim

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
)

// cmState is how far a connection is.
type cmState int

const (
	idle        cmState = iota
	requested           // REQ sent or received
	answered            // REP sent or received
	established         // RTU sent or received
	over                // refused, by either
)

// rejectTimeout is REJ reason 4: the sender has given up.
const rejectTimeout = 4

// manager is an endpoint's part of the connection manager.
type manager struct {
	cm      cmState
	private []byte        // of the request or of the answer
	answer  chan struct{} // says that settled is true

	awaiting bool // Connect or Accept is running
	settled  bool // and has its outcome
	outcome  error

	parting bool // DREQ or DREP sent
	parted  bool // DREQ received
	told    bool // Wait has ErrDisconnected
}

// Connect implements [fabric.Endpoint].
func (e *Endpoint) Connect(ctx context.Context, private []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("Connect")
	if e.side != active || e.cm != idle || e.qp != ready || len(private) > fabric.MaxConnectData {
		return nil, fmt.Errorf("sim: connect: %w", syscall.EINVAL)
	}
	e.cm = requested
	private = slices.Clone(private)
	e.tell(REQ, func() { e.n.request(e, private) })
	if err := e.await(ctx); err != nil {
		return nil, err
	}
	return e.private, nil
}

// Private implements [fabric.Endpoint].
func (e *Endpoint) Private() []byte { return e.private }

// Accept implements [fabric.Endpoint]. A message of the peer confirms too, if
// the confirmation is lost.
func (e *Endpoint) Accept(ctx context.Context, private []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("Accept")
	if e.side == passive && e.cm == over && e.outcome != nil {
		return e.outcome
	}
	if e.side != passive || e.cm != requested || e.qp != ready || len(private) > fabric.MaxAcceptData {
		return fmt.Errorf("sim: accept: %w", syscall.EINVAL)
	}
	e.cm = answered
	e.qp = rtr
	private = fabric.Padded(private, fabric.MaxAcceptData)
	e.tell(REP, func() {
		p := e.peer
		if p.closed || p.cm != requested {
			return
		}
		p.cm = answered
		p.qp = max(p.qp, rtr)
		p.private = private
		p.settle(nil)
	})
	return e.await(ctx)
}

// Confirm implements [fabric.Endpoint].
func (e *Endpoint) Confirm() error {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("Confirm")
	if e.told {
		return fmt.Errorf("sim: confirm: %w", fabric.ErrDisconnected)
	}
	if e.side != active || e.cm != answered || e.qp != rtr {
		return fmt.Errorf("sim: confirm: %w", syscall.EINVAL)
	}
	e.cm = established
	e.qp = rts
	e.tell(RTU, func() { e.peer.confirmed() })
	return nil
}

// confirmed is what RTU does to the passive side, or a message that overtakes
// it.
func (e *Endpoint) confirmed() {
	if e.side != passive || e.cm != answered {
		return
	}
	e.cm = established
	if e.qp == rtr {
		e.qp = rts
	}
	e.settle(nil)
}

// Reject implements [fabric.Endpoint].
func (e *Endpoint) Reject(private []byte) error {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("Reject")
	asked := e.side == passive && e.cm == requested || e.side == active && e.cm == answered
	if !asked || len(private) > fabric.MaxRejectData {
		return fmt.Errorf("sim: reject: %w", syscall.EINVAL)
	}
	e.refuse(fabric.RejectConsumer, private)
	return nil
}

func (e *Endpoint) refuse(reason int, private []byte) {
	e.cm = over
	private = slices.Clone(private)
	e.tell(REJ, func() {
		if e.peer != nil {
			e.peer.refused(reason, private)
		}
	})
}

// refused is what REJ does.
func (e *Endpoint) refused(reason int, private []byte) {
	switch {
	case e.closed || e.cm == idle || e.cm == over:
		return
	case e.cm == established || e.cm == answered && e.side == active:
		e.disconnected()
	default:
		e.settle(&fabric.RejectError{Reason: reason, Private: fabric.Padded(private, fabric.MaxRejectData)})
	}
	e.cm = over
}

// Disconnect implements [fabric.Endpoint]. As rdma_cm does, the peer answers
// when its owner disconnects or closes too; until then, or until CMTimeout,
// Wait says nothing here.
func (e *Endpoint) Disconnect() error {
	e.turn++
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("Disconnect")
	e.fail()
	if e.cm == established {
		e.goodbye()
	}
	return nil
}

// goodbye sends DREQ, or DREP to a peer that was faster.
func (e *Endpoint) goodbye() {
	if e.parting {
		return
	}
	e.parting = true
	if e.parted {
		e.tell(DREP, func() { e.peer.disconnected() })
		return
	}
	e.tell(DREQ, func() {
		p := e.peer
		p.parted = true
		if p.cm == answered {
			p.cm = established // or the peer would not part
		}
		p.disconnected()
		if p.closed || p.parting {
			e.c.after(e.n.link.Latency, func() {
				if !e.c.broken() {
					e.disconnected()
				}
			})
		}
	})
	if !e.told {
		e.c.after(e.n.link.CMTimeout, e.disconnected)
	}
}

// disconnected tells Wait, once, and an Accept that still waits.
func (e *Endpoint) disconnected() {
	if !e.told {
		e.told = true
		e.change(fabric.ErrDisconnected)
		e.settle(fabric.ErrDisconnected)
	}
}

// part is what the kernel tells the peer when an endpoint is destroyed.
func (e *Endpoint) part() {
	switch e.cm {
	case requested:
		if e.side == active {
			e.refuse(rejectTimeout, nil)
		} else {
			e.refuse(fabric.RejectConsumer, nil)
		}
	case answered:
		e.refuse(fabric.RejectConsumer, nil)
	case established:
		e.goodbye()
	}
}

// tell sends a message of the connection manager.
func (e *Endpoint) tell(m Message, arrive func()) {
	if f := e.n.faults.Load(); f != nil && f.Lose != nil && f.Lose(e, m) {
		return
	}
	e.c.after(e.n.link.Latency, func() {
		if !e.c.broken() {
			arrive()
		}
	})
}

// settle ends Connect or Accept.
func (e *Endpoint) settle(err error) {
	if e.settled {
		return
	}
	e.settled, e.outcome = true, err
	select {
	case e.answer <- struct{}{}:
	default:
	}
}

// await waits for settle; the caller holds c.mu, which it lets go meanwhile.
func (e *Endpoint) await(ctx context.Context) error {
	if !e.settled {
		e.c.after(e.n.link.CMTimeout, func() { e.settle(fmt.Errorf("sim: no answer: %w", syscall.ETIMEDOUT)) })
	}
	e.awaiting = true
	defer func() { e.awaiting = false }()
	for !e.settled {
		e.c.mu.Unlock()
		select {
		case <-e.answer:
			e.c.mu.Lock()
		case <-ctx.Done():
			e.c.mu.Lock()
			return ctx.Err()
		}
	}
	return e.outcome
}
