package pconn

// Those whom a Conn sends to: how it finds and forgets them, and what waits meanwhile.

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/rconn"
)

const (
	// maxReceivers is of how many addresses a Conn keeps how to reach them. For one
	// more, it forgets the one that it has not sent to for longest.
	maxReceivers = 256

	// maxPending is how many more it looks for at a time. For one more, it gives up
	// the one that it has looked for longest: nobody's answers are in the way of those
	// whom it has found.
	maxPending = 256

	// maxHeld is how many bytes wait, in all, for receivers that are being looked for.
	// More than that is lost, of what is for the receiver that most waits for.
	maxHeld = 1 << 20

	// resolveWithin is how long that may take. A receiver whose process is stopped,
	// say, does not answer.
	resolveWithin = 5 * time.Second
)

// receiver is somebody to send to.
type receiver struct {
	at       netip.AddrPort
	handle   fabric.AddressHandle // nil while it is being resolved
	sequence uint32
	used     uint64   // the count of writes when it was last sent to
	held     [][]byte // waits for handle
	bytes    int      // of that, headers included

	// While it is being looked for: which search that is, and how to end it.
	search uint64
	giveUp context.CancelFunc
	misses int // so many times in a row it was found, and took nothing any more
}

// maxMisses bounds that. A receiver that has others make room may end what leads to it before
// anything is sent; so it is asked again whether it is there.
const maxMisses = 16

// receiver is the one at an address, whose handle may not be there yet. Called with mu
// held.
func (c *Conn) receiver(at netip.AddrPort) *receiver {
	s := &c.sender
	r := s.receivers[at]
	if r == nil {
		r = &receiver{at: at}
		s.receivers[at] = r
		c.resolve(r)
	}
	return r
}

// giveUpOne gives up the receiver that has been looked for longest. Called with mu held.
func (c *Conn) giveUpOne() {
	s := &c.sender
	var oldest *receiver
	for _, r := range s.receivers {
		if r.giveUp != nil && (oldest == nil || r.search < oldest.search) {
			oldest = r
		}
	}
	c.counters.dropped.Add(uint64(len(oldest.held)))
	s.release(oldest, len(oldest.held))
	oldest.giveUp()
	s.pending--
	delete(s.receivers, oldest.at)
}

// found takes note that a receiver has been found, and forgets one that has not been sent
// to for long if there are too many of those. Called with mu held.
func (c *Conn) found(r *receiver) {
	s := &c.sender
	s.pending--
	r.giveUp, r.used = nil, s.writes
	if len(s.receivers)-s.pending <= maxReceivers {
		return
	}
	var oldest *receiver
	for _, r := range s.receivers {
		if r.handle != nil && (oldest == nil || r.used < oldest.used) {
			oldest = r
		}
	}
	oldest.handle.Close()
	delete(s.receivers, oldest.at)
}

// hold copies a datagram that has to wait, unless there is no room for it. Called with mu
// held.
func (c *Conn) hold(r *receiver, buffers [][]byte, n int) {
	s := &c.sender
	for n+fabric.HeaderSize > maxHeld-s.held {
		c.counters.dropped.Add(1)
		most := s.most()
		if most.bytes <= r.bytes+n+fabric.HeaderSize {
			return
		}
		s.forget(most, len(most.held)-1, len(most.held))
	}
	data := make([]byte, 0, n)
	for _, b := range buffers {
		data = append(data, b...)
	}
	r.held = append(r.held, data)
	s.count(r, n+fabric.HeaderSize)
}

// most is the receiver that most waits for. Called with mu held.
func (s *sender) most() *receiver {
	var most *receiver
	for _, r := range s.receivers {
		if most == nil || r.bytes > most.bytes {
			most = r
		}
	}
	return most
}

// release forgets the first n datagrams that wait for a receiver. Called with mu held.
func (s *sender) release(r *receiver, n int) { s.forget(r, 0, n) }

// forget does so with those from one to another. Called with mu held.
func (s *sender) forget(r *receiver, from, to int) {
	for _, data := range r.held[from:to] {
		s.count(r, -len(data)-fabric.HeaderSize)
	}
	r.held = slices.Delete(r.held, from, to)
}

// count takes note of bytes that wait for a receiver. Called with mu held.
func (s *sender) count(r *receiver, bytes int) {
	r.bytes += bytes
	s.held += bytes
}

// resolve finds out how to reach a receiver, in the background. Called with mu held.
func (c *Conn) resolve(r *receiver) {
	s := &c.sender
	if s.pending == maxPending {
		c.giveUpOne()
	}
	s.pending++
	s.searches++
	ctx, cancel := context.WithCancel(s.ctx)
	r.search, r.giveUp, r.misses = s.searches, cancel, 0
	s.resolving.Go(func() {
		defer cancel()
		for !c.tryToResolve(ctx, r) {
		}
	})
}

// tryToResolve tries once. That nobody is there is said of the time when it began: for
// those datagrams that have come since, it is to be tried again.
func (c *Conn) tryToResolve(ctx context.Context, r *receiver) (done bool) {
	s := &c.sender
	s.mu.Lock()
	waited := len(r.held)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, resolveWithin)
	defer cancel()
	h, err := c.endpoint.Resolve(ctx, r.at)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.receivers[r.at] != r { // it has been given up
		if err == nil {
			h.Close()
		}
		return true
	}
	if err == nil {
		r.handle = h
		sent := c.sendHeld(r)
		s.release(r, sent)
		if len(r.held) == 0 {
			c.found(r)
			return true
		}
		r.handle.Close()
		r.handle, r.sequence = nil, 0
		if sent > 0 {
			r.misses = 0
		}
		if r.misses++; r.misses < maxMisses {
			return false
		}
		err = syscall.ECONNREFUSED
	}
	lost := &c.counters.unreachable
	var reject *fabric.RejectError
	switch {
	case errors.As(err, &reject):
		if err = refusal(err, reject); err != syscall.ECONNREFUSED {
			lost = &c.counters.refused
		}
	case errors.Is(err, context.DeadlineExceeded):
		err = syscall.EHOSTUNREACH
	}
	if waited > len(r.held) || !errors.Is(err, syscall.ECONNREFUSED) {
		waited = len(r.held)
	}
	lost.Add(uint64(waited))
	s.release(r, waited)
	c.tell(err)
	if len(r.held) > 0 {
		return false
	}
	s.pending--
	delete(s.receivers, r.at)
	return true
}

// refusal is what it means to be rejected: bare ECONNREFUSED if nobody is there, or not any
// more. A receiver that stays has no room or no memory for another sender, say, or does not
// want this one.
func refusal(err error, reject *fabric.RejectError) error {
	said := wire.DecodeReject(reject.Private)
	switch {
	case said.Busy:
		return &rconn.RefusedError{Reason: said.Reason, Busy: true}
	case reject.Reason == fabric.RejectNoListener, reject.Reason == fabric.RejectConsumer:
		return syscall.ECONNREFUSED
	}
	return &rconn.RefusedError{Reason: err.Error()}
}

// sendHeld sends what waits for a receiver that has been found, and returns how much:
// not all of it if the receiver has gone again. Called with mu held.
func (c *Conn) sendHeld(r *receiver) int {
	for i, data := range r.held {
		d := []fabric.Datagram{{To: r.handle, Buffers: [][]byte{data}}}
		c.number(&d[0], r)
		c.endpoint.Send(d)
		if !c.sent(&d[0]) {
			return i
		}
	}
	return len(r.held)
}

// tell has the next call of a Conn that was dialed return why its datagrams do not
// arrive.
func (c *Conn) tell(err error) {
	if c.remote.IsValid() {
		c.refused.Store(&err)
		c.reader.notify()
	}
}
