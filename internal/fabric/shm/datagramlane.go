//go:build linux

package shm

// The two ends of a lane, a connection that carries datagrams one way.

import (
	"context"
	"errors"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
)

// ownerGone is the value of a segment's waiting, otherwise 0 or 1, once the segment's
// owner receives nothing any more.
const ownerGone = 2

// enterWithin is how long a sender may take to confirm a connection, and to reach a
// group's member.
const enterWithin = 5 * time.Second

// handle is the sender's end. It implements [fabric.AddressHandle].
type handle struct {
	e *endpoint

	mu     sync.Mutex // guards what follows, and e until it is closed
	closed bool       // e is closed
}

// watch closes e once the receiver, or Close, has ended the connection.
func (h *handle) watch() {
	for h.e.Wait() == nil {
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	_ = h.e.Close()
}

// Close implements [fabric.AddressHandle]. The receiver still receives what was sent.
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
	if h.closed || e.failed.Load() || e.peer.waiting.Load() == ownerGone {
		return fabric.Flushed
	}
	status := e.execute(&fabric.WorkRequest{Op: fabric.Send, Data: d.Header[:], Rest: d.Buffers})
	gone := e.peer.waiting.Load() == ownerGone
	if status == fabric.Fatal || gone && (status != fabric.OK || e.withdraw()) {
		return fabric.Flushed
	}
	if status == fabric.OK {
		e.noteSleeper()
		e.Ring()
	}
	return status
}

// withdraw takes back the datagram that was sent last, while its receiver was about to go.
// It returns false if the receiver has received it, or will: see source.take.
func (e *endpoint) withdraw() bool {
	p, pos := e.peer, e.sent-1
	received := p.posted.Load() > pos+uint64(p.recvQueue)
	word := p.slot(pos).Load()
	return !received && word&sendBit != 0 && p.slot(pos).CompareAndSwap(word, word^lapBit)
}

// source is the receiver's end.
type source struct {
	number uint64 // unique in this process
	e      *endpoint
	d      *datagrams
	in     *inlet        // that the sender has connected to
	sender unix.Ucred    // its process and its user
	cancel func()        // ends the admission
	over   chan struct{} // closed when nothing is received any more
	freed  chan struct{} // closed when the source has been released

	// Guarded by d.mu, as e's receive queue is until over is closed:
	state        sourceState
	memory       budget.Account
	lastActivity int     // d.activity when something was last received
	emptyPolls   int     // how often Receive has found nothing since
	predecessor  *source // an earlier lane of the same sender, whose datagrams are received first; or nil
	drainUntil   uint64  // when no longer receiving: the position behind what had arrived by then
}

var sources atomic.Uint64 // how many there have been

type sourceState int

const (
	entering  sourceState = iota // being admitted
	receiving                    // admitted
	draining                     // disconnected; what has arrived is still received
	ended                        // disconnected; nothing is received any more
)

// open reserves memory and accepts the sender's connection.
func (s *source) open(ctx context.Context) error {
	e := s.e
	own := fabric.Options{SendQueue: 1, RecvQueue: int(s.d.recvQueue.Load()), RecvSize: datagramSize}
	if e.peerShape.queues() > pages(1) || e.peerShape.region != 0 {
		e.refuse(errTooMuch)
		return errTooMuch
	}
	f := e.Footprint(own)
	if err := s.reserve(f.Receives + f.Queues); err != nil {
		e.refuse(err)
		return err
	}
	if _, err := e.Open(own); err != nil {
		return err
	}
	if err := e.PostRecv(own.RecvQueue); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, enterWithin)
	defer cancel()
	return e.Accept(ctx, nil)
}

// errTooMuch is for senders that ask for memory to receive in, beyond the least.
var errTooMuch = errors.New("a sender of datagrams asks for memory to receive in")

// reserve reserves n bytes of the process's budget. If that is used up, it evicts other
// sources until they have given back enough, if they have as much. It holds d.reserving, so
// that no other source takes what they give back, and takes d.mu meanwhile.
func (s *source) reserve(n int) error {
	s.d.reserving.Lock()
	defer s.d.reserving.Unlock()
	for {
		var short *budget.ShortageError
		var other *source
		s.d.mu.Lock()
		err := s.memory.Reserve(n)
		if errors.As(err, &short) {
			other = s.d.evict(s, short.Wanted+short.Used-short.Limit)
		}
		s.d.mu.Unlock()
		if other == nil {
			return err
		}
		<-other.freed
	}
}

// watch makes Receive poll the source whenever its sender rings. Once either end has
// disconnected, it waits until what had arrived is received, and releases the source.
func (s *source) watch() {
	for s.e.Wait() == nil {
		s.d.senderRang(s)
	}
	s.d.mu.Lock()
	s.drain()
	s.d.mu.Unlock()
	<-s.over
	s.release()
}

// receive takes datagrams that have arrived, as many as ds has room for and at most a queue
// full, and returns how many were wanted, and how many dropped. Called with d.mu held.
func (s *source) receive(ds []fabric.Datagram) (wanted, dropped int) {
	for wanted < len(ds) && wanted+dropped < s.e.own.recvQueue && s.arrived() {
		ok, err := s.take(&ds[wanted])
		if err != nil {
			s.end()
			return wanted, dropped + 1
		}
		if ok {
			wanted++
		} else {
			dropped++
		}
	}
	if wanted+dropped > 0 && s.state == receiving {
		s.e.own.posted.Store(s.e.recvPosted)
	}
	if s.state == draining && !s.arrived() {
		s.end()
	}
	return wanted, dropped
}

// arrived reports whether there is a datagram to receive. Called with d.mu held.
func (s *source) arrived() bool {
	return (s.state != draining || s.e.recvDone < s.drainUntil) && s.arrivedAt(s.e.recvDone)
}

func (s *source) arrivedAt(pos uint64) bool {
	own := s.e.own
	return own.slot(pos).Load()&lapBit == own.lapOf(pos)
}

// arrivedUntil returns the position behind what has arrived. Called with d.mu held.
func (s *source) arrivedUntil() uint64 {
	first := s.e.recvDone
	return first + uint64(sort.Search(s.e.own.recvQueue, func(i int) bool { return !s.arrivedAt(first + uint64(i)) }))
}

// waitsForPredecessor reports whether datagrams of an earlier lane are to be received first.
// Called with d.mu held.
func (s *source) waitsForPredecessor() bool {
	for b := s.predecessor; b != nil; b = b.predecessor {
		if b.state != ended && b.arrived() {
			return true
		}
	}
	s.predecessor = nil
	return false
}

// take copies the datagram that has arrived, if it is wanted, and posts its receive
// again. It returns an error if no honest sender can have sent it. Called with d.mu held.
func (s *source) take(d *fabric.Datagram) (wanted bool, err error) {
	e := s.e
	word := e.own.slot(e.recvDone).Load() // read once: the sender can change it
	n := int(word &^ (lapBit | sendBit) >> lengthShift)
	if word&sendBit == 0 || uint32(word) != 0 || n < fabric.HeaderSize || n > e.own.recvSize {
		return false, errNoDatagram
	}
	// A disconnected sender may withdraw its last datagram, and send it to another receiver:
	// of the sender and this end, only one gets to change the word.
	if s.state == draining && !e.own.slot(e.recvDone).CompareAndSwap(word, word&lapBit) {
		return false, errNoDatagram
	}
	rest := e.own.buffer(e.recvDone)[:n]
	rest = rest[copy(d.Header[:], rest):]
	d.From, d.Sender, d.Via = e.remote, 0, fabric.Via{Queue: s.number, To: s.in.group.Addr()}
	wanted = d.Take(rest, s.d.filter)
	e.recvDone++
	e.recvPosted++
	return wanted, nil
}

var errNoDatagram = errors.New("the peer's message is not a datagram")

// tryArm arms the source, so that its sender rings for the next datagram. It returns false if
// one has arrived already, or the source is disconnected. Called with d.mu held.
func (s *source) tryArm() bool {
	s.emptyPolls = 0
	if s.state != receiving {
		return false
	}
	_ = s.e.Arm()
	return !s.arrived()
}

// drain disconnects the sender and lets Receive take what has arrived by now; if nothing has,
// the source ends. Called with d.mu held.
func (s *source) drain() {
	if s.state == ended {
		return
	}
	s.disconnect()
	if s.arrived() {
		s.d.startPolling(s)
		s.d.notify()
	} else {
		s.end()
	}
}

// end disconnects the sender, or ends its admission, and ends the source. What has arrived is
// lost. Called with d.mu held.
func (s *source) end() {
	switch s.state {
	case ended:
		return
	case entering:
		s.cancel()
		s.d.admitted.Broadcast() // add may be waiting
	default:
		s.disconnect()
	}
	s.state, s.predecessor = ended, nil
	s.d.stopPolling(s)
	close(s.over)
}

// disconnect disconnects the sender, unless that has been done. Called with d.mu held.
func (s *source) disconnect() {
	if s.state == receiving {
		s.state = draining
		s.markGone()
		s.drainUntil = s.arrivedUntil()
		_ = s.e.Disconnect()
	}
}

// markGone stores ownerGone, which the sender sees with its next datagram, even if its socket's
// end has not been noticed there yet.
func (s *source) markGone() {
	if s.e.own != nil {
		s.e.own.waiting.Store(ownerGone)
	}
}

// release closes the endpoint, returns its memory to the budget, and removes the source.
func (s *source) release() {
	_ = s.e.Close()
	s.d.remove(s)
	close(s.freed)
}
