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

// cmState is how far a connection is: which message of the connection manager the
// endpoint has sent or received last.
type cmState int

const (
	idle        cmState = iota
	requested           // REQ sent or received
	answered            // REP sent or received
	established         // RTU sent or received
	leaving             // DREQ sent
	left                // DREQ received
	parted              // DREQ sent and received, or DREP sent
	over                // REJ sent or received
)

// cmMoves are the states that can follow each. Where RTU is lost, a message of the peer's
// queue pair or DREQ does its work, and a listener that gives up sends REJ to a dialer
// for whom the connection is established. Who has sent DREQ does not send REJ.
var cmMoves = [...][]cmState{
	idle:        {requested},
	requested:   {answered, over},
	answered:    {established, left, over},
	established: {leaving, left, over},
	leaving:     {parted, over},
	left:        {parted},
	parted:      {},
	over:        {},
}

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

	told bool // Wait has ErrDisconnected
}

// move changes the state.
func (m *manager) move(to cmState) {
	if !slices.Contains(cmMoves[m.cm], to) {
		panic(fmt.Sprintf("sim: connection goes from state %d to %d", m.cm, to))
	}
	m.cm = to
}

// agreed reports whether both sides have agreed to the connection.
func (m *manager) agreed() bool { return m.cm >= established && m.cm < over }

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
	e.move(requested)
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
	e.move(answered)
	e.qp = rtr
	private = fabric.Padded(private, fabric.MaxAcceptData)
	e.tell(REP, func() {
		p := e.peer
		if p.closed || p.cm != requested {
			return
		}
		p.move(answered)
		p.qp = max(p.qp, rtr)
		p.private = private
		p.settle(nil)
	})
	return fabric.Unconfirmed(e.await(ctx))
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
	e.move(established)
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
	e.move(established)
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

// refuse sends REJ.
func (e *Endpoint) refuse(reason int, private []byte) {
	e.move(over)
	private = slices.Clone(private)
	e.tell(REJ, func() {
		if e.peer != nil {
			e.peer.refused(reason, private)
		}
	})
}

// refused is what REJ does on arrival.
func (e *Endpoint) refused(reason int, private []byte) {
	switch {
	case e.closed || e.cm == idle || e.cm == over:
		return
	case e.agreed() || e.cm == answered && e.side == active:
		e.disconnected()
	default:
		e.settle(&fabric.RejectError{Reason: reason, Private: fabric.Padded(private, fabric.MaxRejectData)})
	}
	e.move(over)
}

// Disconnect implements [fabric.Endpoint]. As rdma_cm does, the peer answers
// when its owner disconnects or closes too; until then, or until CMTimeout,
// Wait says nothing here.
func (e *Endpoint) Disconnect() error {
	if f := e.n.faults.Load().Disconnect; f != nil {
		if err := f(e); err != nil {
			return err
		}
	}
	e.turn++
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("Disconnect")
	e.fail()
	e.goodbye()
	return nil
}

// goodbye ends a connection: with DREQ, or with DREP if the peer has sent DREQ. Where
// neither can be sent, it does nothing.
func (e *Endpoint) goodbye() {
	switch e.cm {
	case established:
		e.move(leaving)
		e.tell(DREQ, e.peer.dismissed)
		if !e.told {
			e.c.agenda.after(e.n.link.CMTimeout, e.disconnected)
		}
	case left:
		e.move(parted)
		e.tell(DREP, e.peer.disconnected)
	}
}

// dismissed is what DREQ does on arrival. If the owner has disconnected or closed, too,
// the endpoint answers with DREP at once; else goodbye does.
func (e *Endpoint) dismissed() {
	switch e.cm {
	case answered, established:
		e.move(left)
	case leaving:
		e.move(parted)
	}
	e.disconnected()
	if e.closed || e.cm == parted {
		e.c.carry(e.peer.disconnected)
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

// part is what the kernel tells the peer of an endpoint that is destroyed.
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
	default:
		e.goodbye()
	}
}

// tell sends a message of the connection manager. When it arrives, arrive runs with c.mu
// held.
func (e *Endpoint) tell(m Message, arrive func()) {
	if lose := e.n.faults.Load().Lose; lose != nil && lose(e, m) {
		return
	}
	e.c.carry(arrive)
}

// settle ends Connect or Accept, or the next of them, with an outcome.
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

// await waits for settle, and returns the outcome. The caller holds c.mu, which await
// releases meanwhile.
func (e *Endpoint) await(ctx context.Context) error {
	if !e.settled {
		e.c.agenda.after(e.n.link.CMTimeout, func() { e.settle(fmt.Errorf("sim: no answer: %w", syscall.ETIMEDOUT)) })
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
