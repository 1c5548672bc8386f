//go:build linux

package shm

// The two ends of a connection that carries datagrams, one way.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
)

// ownerGone is in the word that else says whether a segment's owner sleeps, once the
// owner receives nothing any more.
const ownerGone = 2

// enterWithin is how long a sender that asks to connect may take to confirm.
const enterWithin = 5 * time.Second

// handle is the sender's end. It implements [fabric.AddressHandle].
type handle struct {
	e *endpoint

	mu     sync.Mutex // guards what follows, and e while it lasts
	closed bool       // e is
}

// watch ends the connection when the receiver does, or Close.
func (h *handle) watch() {
	for h.e.Wait() == nil {
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	_ = h.e.Close()
}

// Close implements [fabric.AddressHandle]. What was sent stays there to be received.
func (h *handle) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		_ = h.e.Disconnect()
	}
}

// send puts a datagram into the receiver's memory, and wakes it.
func (h *handle) send(d *fabric.Datagram) fabric.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.e
	if h.closed || e.failed.Load() {
		return fabric.Flushed
	}
	p := e.peer
	if e.sent == e.peerPosted {
		if err := e.lookUpPosted(); err != nil {
			e.corrupt(err)
			return fabric.Flushed
		}
		if e.sent == e.peerPosted && p.waiting.Load() != ownerGone {
			return fabric.RNRRetryExceeded
		}
	}
	if p.waiting.Load() == ownerGone {
		return fabric.Flushed
	}
	b := p.buffer(e.sent)
	n := copy(b, d.Header[:])
	for _, part := range d.Buffers {
		n += copy(b[n:], part)
	}
	p.slot(e.sent).Store(p.lapOf(e.sent) | sendBit | uint64(n)<<lengthShift)
	e.sent++
	switch p.waiting.Load() {
	case 0:
	case ownerGone:
		return fabric.Flushed
	default:
		if p.waiting.CompareAndSwap(1, 0) {
			if err := e.sock.ring(); err != nil {
				e.corrupt(fmt.Errorf("the peer cannot be woken: %w: %w", err, fabric.ErrQueuePair))
			}
		}
	}
	return fabric.OK
}

// source is the receiver's end.
type source struct {
	number uint64 // of those of this process
	e      *endpoint
	d      *datagrams
	in     *inlet // where it has come in

	mu     sync.Mutex // guards what follows, and e until it is gone
	state  sourceState
	memory budget.Account
	heard  int // the turn of the queue pair when it last received from here
}

var sources atomic.Uint64 // how many there have been

type sourceState int

const (
	hearing sourceState = iota
	fading              // the sender has gone; what has arrived is still received
	deaf                // nothing is received any more, which the sender has been told
	gone                // and everything is given back
)

// open connects with the sender.
func (s *source) open() error {
	e := s.e
	own := fabric.Options{SendQueue: 1, RecvQueue: int(s.d.recvQueue.Load()), RecvSize: datagramSize}
	err := errTooMuch
	if e.peerShape.queues() <= pages(1) && e.peerShape.region == 0 {
		f := e.Footprint(own)
		err = s.memory.Reserve(f.Receives + f.Queues)
	}
	if err != nil {
		e.sayNo(&frame{reason: reasonUnsupported, text: err.Error()})
		return err
	}
	if _, err := e.Open(own); err != nil {
		return err
	}
	if err := e.PostRecv(own.RecvQueue); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.d.ctx, enterWithin)
	defer cancel()
	return e.Accept(ctx, nil)
}

// watch has the queue pair's owner look when there is something, until the sender, or
// this end, has gone.
func (s *source) watch() {
	for s.e.Wait() == nil {
		s.d.notify()
	}
	s.mu.Lock()
	if s.state == hearing && s.arrived() {
		s.state = fading
	} else {
		s.release()
	}
	s.mu.Unlock()
	s.d.notify()
}

// receive takes what has arrived, as much as ds has room for, and says how much.
func (s *source) receive(ds []fabric.Datagram, turn int) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state > fading {
		return 0
	}
	before := s.e.recvDone
	for n < len(ds) && s.arrived() {
		wanted, err := s.take(&ds[n])
		if err != nil {
			s.end()
			return n
		}
		if wanted {
			n++
		}
	}
	if s.e.recvDone != before {
		s.heard = turn
		s.e.own.posted.Store(s.e.recvPosted)
	}
	if s.state == fading && !s.arrived() {
		s.release()
	}
	return n
}

// arrived says whether there is something to receive. Called with mu held.
func (s *source) arrived() bool {
	own, pos := s.e.own, s.e.recvDone
	return own.slot(pos).Load()&lapBit == own.lapOf(pos)
}

// take copies the datagram that has arrived, if it is wanted, and posts its receive
// again. It returns an error if no honest sender can have sent it. Called with mu held.
func (s *source) take(d *fabric.Datagram) (wanted bool, err error) {
	e := s.e
	word := e.own.slot(e.recvDone).Load() // read once: the sender can change it
	n := int(word &^ (lapBit | sendBit) >> lengthShift)
	if word&sendBit == 0 || uint32(word) != 0 || n < fabric.HeaderSize || n > e.own.recvSize {
		return false, errNoDatagram
	}
	rest := e.own.buffer(e.recvDone)[:n]
	rest = rest[copy(d.Header[:], rest):]
	d.From, d.Via, d.Len = e.remote, fabric.Via{Queue: s.number, To: s.in.group.Addr()}, len(rest)
	if wanted = s.d.filter(d); wanted {
		for _, part := range d.Buffers {
			rest = rest[copy(part, rest):]
		}
	}
	e.recvDone++
	e.recvPosted++
	return wanted, nil
}

var errNoDatagram = errors.New("the peer says that it sent what is no datagram")

// arm has the next datagram wake this process.
func (s *source) arm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == hearing {
		_ = s.e.Arm()
	}
}

// silent says since when nothing has come, if all of that has been received.
func (s *source) silent() (since int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard, s.state == hearing && !s.arrived()
}

// close ends the source. What has arrived is lost.
func (s *source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
}

// end does that. Called with mu held.
func (s *source) end() {
	switch s.state {
	case hearing: // watch does the rest
		s.state = deaf
		s.tell()
		_ = s.e.Disconnect()
	case fading:
		s.release()
	}
}

// tell has the sender know that nothing is received any more: it need not hear from
// its socket first. Called with mu held.
func (s *source) tell() {
	if s.e.own != nil {
		s.e.own.waiting.Store(ownerGone)
	}
}

// release gives everything back. Called with mu held, unless nobody else has s, and when
// watch does not wait any more.
func (s *source) release() {
	s.state = gone
	s.tell()
	_ = s.e.Close()
	s.memory.Release(s.memory.Bytes())
	s.d.remove(s)
}
