// The send queue: from PostSend to the peer and back with an acknowledgement.

package sim

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// sendQueue is an endpoint's. Positions count requests since Open:
// sendFreed ≤ acked ≤ posted ≤ sendFreed + the depth.
type sendQueue struct {
	sends     []send
	posted    uint64
	acked     uint64 // all before it have ended
	sendFreed uint64 // all before it have given up their slots

	tries    int       // how often the oldest message that is not acknowledged was repeated
	progress time.Time // of the last acknowledgement or repetition
	timing   bool      // an event will call repeat
}

// send is a slot of the send queue.
type send struct {
	id       uint64
	signaled bool
	message  *message // nil if PostSend has delivered it
}

// message is a request on its way.
type message struct {
	pos   uint64
	wr    fabric.WorkRequest
	fate  fabric.Status // how it ends: not OK if a fault says so
	left  time.Time     // when its last byte has left
	never bool          // it had not left when its queue pair failed
}

// PostSend implements [fabric.Endpoint].
func (e *Endpoint) PostSend(wr []fabric.WorkRequest) error {
	e.sendTurn++
	f := e.n.faults.Load()
	if f.PostSend != nil {
		if err := f.PostSend(e, wr); err != nil {
			return err
		}
	}
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("PostSend")
	if e.qp != rts && e.qp != failed {
		return fmt.Errorf("sim: post a send before the connection is established: %w", syscall.EINVAL)
	}
	if e.posted-e.sendFreed+uint64(len(wr)) > uint64(e.limits.SendQueue) {
		return fmt.Errorf("sim: post %d sends to a full queue: %w", len(wr), syscall.ENOMEM)
	}
	for i := range wr {
		if wr[i].ID > fabric.MaxID {
			return fmt.Errorf("sim: post work request %#x: %w", wr[i].ID, syscall.EINVAL)
		}
		if wr[i].Op > fabric.WriteImm || wr[i].Memory == nil && wr[i].Len() > e.limits.Inline {
			return fmt.Errorf("sim: post a send of %d bytes inline: %w", wr[i].Len(), syscall.EINVAL)
		}
	}
	for i := range wr {
		wr := &wr[i]
		if len(wr.Rest) > 0 {
			wr = inOnePiece(wr)
		}
		fate := e.check(wr)
		if f.Send != nil && fate == fabric.OK {
			fate = f.Send(e, wr)
		}
		e.post(wr, fate)
	}
	return nil
}

// RingDue and Ring implement [fabric.Endpoint].
func (e *Endpoint) RingDue() bool { return false }
func (e *Endpoint) Ring()         {}

// inOnePiece returns the request with all that it carries in Data.
func inOnePiece(wr *fabric.WorkRequest) *fabric.WorkRequest {
	whole := *wr
	whole.Data, whole.Rest = make([]byte, wr.Len()), nil
	wr.CopyTo(whole.Data)
	return &whole
}

// check is the status of a request that the device at home refuses.
func (e *Endpoint) check(wr *fabric.WorkRequest) fabric.Status {
	if wr.Memory == nil || len(wr.Data) == 0 {
		return fabric.OK
	}
	if m, ok := wr.Memory.(*Memory); !ok || m.e != e || !m.holds(wr.Data) {
		return fabric.LocalProtection
	}
	return fabric.OK
}

// post takes a slot and sends the request off.
func (e *Endpoint) post(wr *fabric.WorkRequest, fate fabric.Status) {
	pos := e.posted
	e.posted++
	s := &e.sends[pos%uint64(len(e.sends))]
	*s = send{id: wr.ID, signaled: wr.Signaled}
	if e.qp == failed {
		e.flushSends()
		return
	}
	if e.n.instant && e.acked == pos && fate == fabric.OK && !e.c.broken() && e.peer.receives() {
		e.peer.expected++
		if status := e.peer.execute(wr); status != fabric.OK {
			e.nak(pos, status)
		} else {
			e.ack(pos)
		}
		return
	}
	s.message = &message{pos: pos, wr: *wr, fate: fate}
	if wr.Memory == nil {
		s.message.wr.Data = slices.Clone(wr.Data)
	}
	e.transmit(s.message)
	e.startTimer()
}

// receives reports whether the queue pair takes messages. The first of them confirms the
// connection.
func (e *Endpoint) receives() bool {
	if e.closed || e.qp != rtr && e.qp != rts {
		return false
	}
	e.confirmed()
	return true
}

// transmit puts a message on the link. The data in registered memory are read when the
// message arrives: until then a device may read them again, to repeat the message.
func (e *Endpoint) transmit(m *message) {
	if e.n.instant {
		m.left = time.Now()
		e.arrive(m)
		return
	}
	m.left = e.n.leave(e.side, len(m.wr.Data))
	e.c.agenda.add(m.left.Add(e.n.link.Latency), func() { e.arrive(m) })
}

// arrive executes a message of transmit at the peer, which acknowledges it.
func (e *Endpoint) arrive(m *message) {
	p := e.peer
	if m.never || e.c.broken() || !p.receives() || m.pos > p.expected {
		return // the sender repeats it
	}
	status := m.fate
	if status == fabric.OK && m.pos == p.expected {
		status = p.execute(&m.wr)
		if status == fabric.OK {
			p.expected++
		}
	}
	e.c.agenda.after(e.n.link.Latency, func() {
		switch {
		case e.c.broken():
		case status == fabric.OK:
			e.ack(m.pos)
		default:
			e.nak(m.pos, status)
		}
	})
}

// ack completes all requests up to pos with success.
func (e *Endpoint) ack(pos uint64) {
	if e.qp == failed || pos < e.acked {
		return
	}
	e.tries = 0
	if e.timing {
		e.progress = time.Now()
	}
	for e.acked <= pos {
		s := &e.sends[e.acked%uint64(len(e.sends))]
		s.message = nil
		x := entry{Completion: fabric.Completion{ID: s.id}, pos: e.acked}
		e.acked++
		if s.signaled {
			e.complete(x)
		}
	}
}

// nak completes the request at pos without success, and fails the queue pair.
func (e *Endpoint) nak(pos uint64, status fabric.Status) {
	if e.qp == failed || pos < e.acked {
		return
	}
	if pos > 0 {
		e.ack(pos - 1)
	}
	x := entry{Completion: fabric.Completion{ID: e.sends[pos%uint64(len(e.sends))].id, Status: status}, pos: pos}
	e.acked = pos + 1
	e.complete(x)
	e.fail()
}

// flushSends completes all outstanding requests without success. Messages that have left
// arrive all the same.
func (e *Endpoint) flushSends() {
	now := time.Now()
	for e.acked < e.posted {
		s := &e.sends[e.acked%uint64(len(e.sends))]
		if m := s.message; m != nil {
			m.never = m.left.After(now)
			m.wr.Data = slices.Clone(m.wr.Data)
			s.message = nil
		}
		x := entry{Completion: fabric.Completion{ID: s.id, Status: fabric.Flushed}, pos: e.acked}
		e.acked++
		e.complete(x)
	}
}

// startTimer starts the timer by which a message that is not acknowledged is repeated.
func (e *Endpoint) startTimer() {
	if e.options.AckTimeout == 0 || e.timing || e.acked == e.posted || e.qp == failed {
		return
	}
	e.timing = true
	e.progress = time.Now()
	e.tries = 0
	e.c.agenda.add(e.deadline(), e.repeat)
}

// deadline is when the oldest message that is not acknowledged is to be repeated.
func (e *Endpoint) deadline() time.Time {
	t := e.progress
	if m := e.sends[e.acked%uint64(len(e.sends))].message; m != nil && m.left.After(t) {
		t = m.left
	}
	return t.Add(e.options.AckTimeout)
}

// repeat sends all messages that are not acknowledged again, or, after the last try, fails
// the queue pair.
func (e *Endpoint) repeat() {
	e.timing = false
	if e.acked == e.posted || e.qp == failed {
		return
	}
	now := time.Now()
	if !now.Before(e.deadline()) {
		if e.tries == e.options.Retries {
			e.nak(e.acked, fabric.RetryExceeded)
			return
		}
		e.tries++
		e.progress = now
		for pos := e.acked; pos < e.posted && e.qp != failed; pos++ {
			if m := e.sends[pos%uint64(len(e.sends))].message; m != nil {
				e.transmit(m)
			}
		}
		if e.acked == e.posted || e.qp == failed {
			return
		}
	}
	e.timing = true
	e.c.agenda.add(e.deadline(), e.repeat)
}
