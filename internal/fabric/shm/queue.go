//go:build linux

package shm

// The queue pair: posting and polling.
//
// A descriptor is one word: the lap bit, the operation, the length, the
// immediate. The sender puts the data in its place and then stores the word;
// the receiver waits for a word with the lap bit of its position, so that one
// cache line tells it all but the data. The sender writes a slot only once the
// receive for it has been posted, which is after the message that was there
// before has been polled.

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Parts of a descriptor. The immediate is the lower half.
const (
	lapBit      = 1 << 63
	sendBit     = 1 << 62 // Send; otherwise WriteImm
	lengthShift = 32

	maxMessage   = 1<<30 - 1
	maxSendQueue = 1 << 16
)

// scratchMessages is how many of the largest Sends Poll returns between two
// PostRecvs without an allocation.
const scratchMessages = 16

// sendQueue is an endpoint's send queue. Positions count work requests since Open.
// Each is executed within PostSend, but its place is free again only when its
// completion, or a later request's, has been polled.
type sendQueue struct {
	posted uint64
	freed  atomic.Uint64

	// completions is a ring, indexed by counts modulo its length, which is a
	// power of two. PostSend adds to it while Poll takes from it.
	completions []sendDone
	head        uint64
	tail        atomic.Uint64

	ringDue atomic.Bool // the peer waits for a doorbell

	bell    sync.Mutex // guards ringing, and sock from being closed while it is rung
	ringing patience   // doorbells

	sent       uint64 // messages that took a receive of the peer's
	peerPosted uint64 // receives of the peer's, as last looked up
}

type sendDone struct {
	id     uint64
	pos    uint64
	status fabric.Status
}

// recvQueue is an endpoint's receive queue. Positions count receives since Open.
type recvQueue struct {
	recvPosted uint64
	recvDone   uint64 // their completions have been polled
	scratch    []byte // data of polled Sends
}

// lapOf returns the lap bit of a position: set the first time around, when the
// memory is still zero, and then every other time.
func (s *segment) lapOf(pos uint64) uint64 { return (pos>>s.lap&1 ^ 1) << 63 }

// PostSend implements [fabric.Endpoint]. A request ends when its data is in the
// peer's memory: from then on the peer finds it there, even if this process has
// gone.
func (e *endpoint) PostSend(wr []fabric.WorkRequest) error {
	if e.step != established {
		return fmt.Errorf("post a send before the connection is established: %w", syscall.EINVAL)
	}
	if e.posted-e.freed.Load()+uint64(len(wr)) > uint64(e.limits.SendQueue) {
		return fmt.Errorf("post %d sends to a full queue: %w", len(wr), syscall.ENOMEM)
	}
	for i := range wr {
		if n := wr[i].Len(); wr[i].Op > fabric.WriteImm || n > maxMessage {
			return fmt.Errorf("post a send of %d bytes: %w", n, syscall.EINVAL)
		}
	}
	before := e.sent
	for i := range wr {
		status := fabric.Flushed
		if !e.failed.Load() {
			if status = e.execute(&wr[i]); status != fabric.OK {
				e.moveToError()
			}
		}
		if status != fabric.OK || wr[i].Signaled {
			tail := e.tail.Load()
			e.completions[tail&uint64(len(e.completions)-1)] = sendDone{wr[i].ID, e.posted, status}
			e.tail.Store(tail + 1)
			e.wakeIfArmed()
		}
		e.posted++
	}
	if e.sent != before {
		e.noteSleeper()
	}
	return nil
}

// noteSleeper makes Ring due if the peer may be asleep.
func (e *endpoint) noteSleeper() {
	if e.peer.waiting.Load() == 1 && e.peer.waiting.CompareAndSwap(1, 0) {
		e.ringDue.Store(true)
	}
}

// RingDue implements [fabric.Endpoint].
func (e *endpoint) RingDue() bool { return e.ringDue.Load() }

// Ring implements [fabric.Endpoint]. Who finds that another call rings leaves it to that.
func (e *endpoint) Ring() {
	for e.ringDue.Load() && e.bell.TryLock() {
		if e.ringDue.Swap(false) && !e.sock.closed.Load() {
			e.ring()
		}
		e.bell.Unlock()
	}
}

// ring wakes the peer. Called with bell held.
func (e *endpoint) ring() {
	began := e.ringing.begin()
	err := e.sock.ring()
	if slow := e.ringing.end(began); err == nil {
		err = slow
	}
	if err != nil {
		e.abort(fmt.Errorf("the peer cannot be woken: %w: %w", err, fabric.ErrQueuePair))
	}
}

// execute puts a message into the peer's memory.
func (e *endpoint) execute(wr *fabric.WorkRequest) fabric.Status {
	n := wr.Len()
	if wr.Memory != nil && n > 0 {
		if m, ok := wr.Memory.(*memory); !ok || m.e != e || !holds(m.bytes, wr.Data) {
			return fabric.LocalProtection
		}
	}
	p := e.peer
	if wr.Op != fabric.Write && e.sent == e.peerPosted {
		if err := e.lookUpPosted(); err != nil {
			e.abort(err)
			return fabric.Fatal
		}
		if e.sent == e.peerPosted {
			return fabric.RNRRetryExceeded
		}
	}
	word := p.lapOf(e.sent) | uint64(n)<<lengthShift
	if wr.Op == fabric.Send {
		if n > p.recvSize {
			return fabric.RemoteInvalidRequest
		}
		wr.CopyTo(p.buffer(e.sent))
		word |= sendBit
	} else {
		if n > 0 { // else neither address nor key is looked at
			window := *e.window.Load()
			size := uint64(len(window))
			if wr.RKey != p.rkey || wr.RemoteAddr > size || uint64(n) > size-wr.RemoteAddr {
				return fabric.RemoteAccess
			}
			wr.CopyTo(window[wr.RemoteAddr:][:n]) // and no further, whatever becomes of Rest
		}
		if wr.Op == fabric.Write {
			return fabric.OK
		}
		word |= uint64(wr.Imm)
	}
	p.slot(e.sent).Store(word)
	e.sent++
	return fabric.OK
}

// lookUpPosted reads how many receives the peer has posted.
func (e *endpoint) lookUpPosted() error {
	posted := e.peer.posted.Load()
	if posted < e.peerPosted || posted-e.sent > uint64(e.peer.recvQueue) {
		return fmt.Errorf("the peer says that it has posted %d receives, after %d, with a queue of %d: %w",
			posted, e.peerPosted, e.peer.recvQueue, fabric.ErrQueuePair)
	}
	e.peerPosted = posted
	return nil
}

// abort ends a connection whose peer has broken the protocol, or cannot be woken.
func (e *endpoint) abort(err error) {
	e.broken.Store(&err)
	e.notify(fabric.ErrQueuePair, err)
	e.moveToError()
}

// PostRecv implements [fabric.Endpoint].
func (e *endpoint) PostRecv(n int) error {
	if e.limits.RecvQueue == 0 || n < 0 {
		return fmt.Errorf("post %d receives: %w", n, syscall.EINVAL)
	}
	if e.recvPosted-e.recvDone+uint64(n) > uint64(e.limits.RecvQueue) {
		return fmt.Errorf("post %d receives to a full queue: %w", n, syscall.ENOMEM)
	}
	e.scratch = e.scratch[:0]
	e.recvPosted += uint64(n)
	if e.failed.Load() {
		e.wakeIfArmed()
	} else if e.own != nil {
		e.own.posted.Store(e.recvPosted)
	}
	return nil
}

// Poll implements [fabric.Endpoint]. After abort, one call returns its error.
func (e *endpoint) Poll(c []fabric.Completion) (int, error) {
	n := 0
	for ; n < len(c) && e.head != e.tail.Load(); n++ {
		d := &e.completions[e.head&uint64(len(e.completions)-1)]
		c[n] = fabric.Completion{ID: d.id, Status: d.status}
		e.freed.Store(d.pos + 1)
		e.head++
	}
	for ; n < len(c) && e.recvDone != e.recvPosted; n++ {
		if e.drained || !e.takeMessage(&c[n]) {
			if !e.failed.Load() {
				break
			}
			e.drained = true
			c[n] = fabric.Completion{Recv: true, Status: fabric.Flushed}
		}
		e.recvDone++
	}
	if e.broken.Load() == nil {
		return n, nil
	}
	return n, *e.broken.Swap(nil)
}

// takeMessage takes the next message of the peer's, if there is one.
func (e *endpoint) takeMessage(c *fabric.Completion) bool {
	s := e.own
	if s == nil {
		return false
	}
	word := s.slot(e.recvDone).Load()
	if word&lapBit != s.lapOf(e.recvDone) {
		return false
	}
	n := int(word &^ (lapBit | sendBit) >> lengthShift)
	if word&sendBit == 0 {
		if n > s.region {
			e.abort(fmt.Errorf("the peer says that it wrote %d bytes to memory of %d: %w", n, s.region, fabric.ErrQueuePair))
			return false
		}
		*c = fabric.Completion{Recv: true, Op: fabric.WriteImm, Imm: uint32(word), Len: n}
		return true
	}
	if n > s.recvSize || uint32(word) != 0 {
		e.abort(fmt.Errorf("the peer says that it sent %d bytes to a receive of %d: %w", n, s.recvSize, fabric.ErrQueuePair))
		return false
	}
	// The peer can still write to the buffer, so the completion has a copy.
	at := len(e.scratch)
	e.scratch = append(e.scratch, s.buffer(e.recvDone)[:n]...)
	*c = fabric.Completion{Recv: true, Op: fabric.Send, Len: n, Data: e.scratch[at:]}
	return true
}
