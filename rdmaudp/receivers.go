package rdmaudp

// The receivers that a PacketConn sends to: how it finds and forgets them, and the datagrams that
// wait meanwhile.

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/rdmaudp/internal/ud"
)

const (
	// maxReceivers is how many receivers a PacketConn keeps handles for. For one more, it
	// forgets the one that it has not sent to for longest.
	maxReceivers = 256

	// maxPending is how many receivers it looks for at a time. For one more, it gives up
	// the one that it has looked for longest. So receivers that do not answer never make
	// it forget one that it has found.
	maxPending = 256

	// maxHeld is how many bytes, headers included, wait in all for receivers that are
	// being looked for. For more, it drops the last datagram of the receiver for which
	// most bytes wait.
	maxHeld = 1 << 20

	// resolveWithin is how long one try to find a receiver may take. A receiver whose
	// process is stopped, for example, does not answer.
	resolveWithin = 5 * time.Second
)

// receiver is an address that a PacketConn sends to. Guarded by sender.mu.
type receiver struct {
	at        netip.AddrPort
	handle    ud.AddressHandle // nil while it is being resolved
	sequence  uint32
	used      uint64   // the count of writes when it was last sent to, or its search began
	held      [][]byte // datagrams that wait for handle
	heldBytes int      // of held, headers included

	// While it is being looked for:
	giveUp context.CancelFunc // ends the search
	misses int                // tries that found it but did not send all, since one sent some
}

// maxMisses is after how many of those a receiver counts as gone. One that evicts senders to
// admit others may end a handle before anything is sent through it, and would admit c again.
const maxMisses = 16

// receiver returns the receiver at an address. If it is new, c begins to look for it. Its
// handle is nil until c has found it. Called with mu held.
func (c *PacketConn) receiver(at netip.AddrPort) *receiver {
	s := &c.sender
	r := s.receivers[at]
	if r == nil {
		r = &receiver{at: at}
		s.receivers[at] = r
		c.resolve(r)
	}
	return r
}

// oldest returns the receiver that has been looked for longest, or that which has been found
// and not been sent to for longest. Called with mu held.
func (s *sender) oldest(lookedFor bool) (oldest *receiver) {
	for _, r := range s.receivers {
		if (r.giveUp != nil) == lookedFor && (oldest == nil || r.used < oldest.used) {
			oldest = r
		}
	}
	return oldest
}

// giveUpOne gives up the receiver that has been looked for longest. Called with mu held.
func (c *PacketConn) giveUpOne() {
	s := &c.sender
	oldest := s.oldest(true)
	c.counters.dropped.Add(uint64(len(oldest.held)))
	s.removeHeld(oldest, 0, len(oldest.held))
	oldest.giveUp()
	s.pending--
	delete(s.receivers, oldest.at)
}

// markFound ends the search for a receiver that c has found. If those are more than
// maxReceivers now, it forgets the one that it has not sent to for longest. Called with mu
// held.
func (c *PacketConn) markFound(r *receiver) {
	s := &c.sender
	s.pending--
	r.giveUp, r.used = nil, s.writes
	if len(s.receivers)-s.pending <= maxReceivers {
		return
	}
	oldest := s.oldest(false)
	oldest.handle.Close()
	delete(s.receivers, oldest.at)
}

// hold copies a datagram, which waits for its receiver. For want of room, see maxHeld, it drops
// other datagrams, or this one. Called with mu held.
func (c *PacketConn) hold(r *receiver, buffers [][]byte) {
	s := &c.sender
	n := ud.HeaderSize + ud.Size(buffers)
	for n > maxHeld-s.heldBytes {
		c.counters.dropped.Add(1)
		most := s.mostHeld()
		if most.heldBytes <= r.heldBytes+n {
			return
		}
		s.removeHeld(most, len(most.held)-1, len(most.held))
	}
	r.held = append(r.held, slices.Concat(buffers...))
	s.countHeld(r, n)
}

// mostHeld returns the receiver for which most bytes wait. Called with mu held.
func (s *sender) mostHeld() *receiver {
	var most *receiver
	for _, r := range s.receivers {
		if most == nil || r.heldBytes > most.heldBytes {
			most = r
		}
	}
	return most
}

// removeHeld removes the datagrams held[from:to] of a receiver. Called with mu held.
func (s *sender) removeHeld(r *receiver, from, to int) {
	for _, data := range r.held[from:to] {
		s.countHeld(r, -len(data)-ud.HeaderSize)
	}
	r.held = slices.Delete(r.held, from, to)
}

// countHeld adds bytes, which may be negative, to those that wait for a receiver. Called with
// mu held.
func (s *sender) countHeld(r *receiver, bytes int) {
	r.heldBytes += bytes
	s.heldBytes += bytes
}

// resolve starts a goroutine that looks for a receiver. If c looks for maxPending already, it
// gives up one of those. Called with mu held.
func (c *PacketConn) resolve(r *receiver) {
	s := &c.sender
	if s.pending == maxPending {
		c.giveUpOne()
	}
	s.pending++
	ctx, cancel := context.WithCancel(s.ctx)
	r.used, r.giveUp, r.misses = s.writes, cancel, 0
	s.resolving.Go(func() {
		defer cancel()
		for !c.tryToResolve(ctx, r) {
		}
	})
}

// tryToResolve tries once to find a receiver, and to send the datagrams that wait for it. If
// it returns false, it is to be called again: the receiver ended before it took them all, or
// was not there when the try began, and datagrams have been written since. It takes mu, but
// not while it waits for an answer.
func (c *PacketConn) tryToResolve(ctx context.Context, r *receiver) (done bool) {
	s := &c.sender
	s.mu.Lock()
	waited := len(r.held)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, resolveWithin)
	defer cancel()
	h, err := c.endpoint.Resolve(ctx, r.at)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.receivers[r.at] != r { // given up
		if err == nil {
			h.Close()
		}
		return true
	}
	if err == nil {
		r.handle = h
		sent := c.sendHeld(r)
		s.removeHeld(r, 0, sent)
		if len(r.held) == 0 {
			c.markFound(r)
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
	s.removeHeld(r, 0, waited)
	c.failNextCall(err)
	if len(r.held) > 0 {
		return false
	}
	s.pending--
	delete(s.receivers, r.at)
	return true
}

// refusal returns the error of a rejected request: bare ECONNREFUSED if there is no receiver,
// or it has just been closed; else *RefusedError, with the receiver's reason: that it has no
// memory for another sender, for example, or does not trust this one.
func refusal(err error, reject *fabric.RejectError) error {
	said := wire.DecodeReject(reject.Private)
	switch {
	case said.Busy:
		return &fabric.RefusedError{Reason: said.Reason, Busy: true}
	case reject.Reason == fabric.RejectNoListener, reject.Reason == fabric.RejectConsumer:
		return syscall.ECONNREFUSED
	}
	return &fabric.RefusedError{Reason: err.Error()}
}

// sendHeld sends the datagrams that wait for a receiver that has been found, and returns how
// many: not all if the receiver has ended the handle. Called with mu held.
func (c *PacketConn) sendHeld(r *receiver) int {
	for i, data := range r.held {
		d := []ud.Datagram{{To: r.handle, Buffers: [][]byte{data}}}
		c.number(&d[0], r)
		c.endpoint.Send(d)
		if !c.countSent(&d[0]) {
			return i
		}
	}
	return len(r.held)
}

// failNextCall makes the next call return why datagrams have not reached their receiver, if c
// was dialed.
func (c *PacketConn) failNextCall(err error) {
	if c.remote.IsValid() {
		c.nextError.Store(&err)
		c.wake()
	}
}
