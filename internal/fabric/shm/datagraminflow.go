//go:build linux

package shm

// The senders that a queue pair for datagrams receives from: how they are admitted, which
// of them are evicted, and which of them Receive polls.

import (
	"context"
	"slices"
	"sync"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// maxSources is how many senders a queue pair receives from at a time. For one more, another is
// evicted (datagramevict.go), which may connect anew.
const maxSources = 1024

// inflow is a queue pair's state of its senders. It is guarded by datagrams.mu.
type inflow struct {
	entering []*source // being admitted, the oldest first
	admitted sync.Cond // broadcast when one of those has been admitted, or has failed
	sources  []*source // the oldest first
	activity int       // counts sources that were added, and times that one had datagrams

	// polled are the sources that Receive polls, beginning with that at nextPolled. The
	// others are armed: their senders ring when they send, so an idle sender costs
	// no polls.
	polled      []*source
	nextPolled  int
	nextChecked int // index in sources of the one that checkOne has polled last
}

// accept admits senders until the inlet is closed.
func (d *datagrams) accept(in *inlet) {
	for {
		e, err := in.listener.Accept()
		if err != nil {
			return // closed: nothing else ends it
		}
		ctx, cancel := context.WithCancel(d.ctx)
		s := d.enter(in, e.(*endpoint), cancel)
		if s == nil {
			cancel()
			e.(*endpoint).rejectAndClose(wire.Full)
			continue
		}
		d.goroutines.Go(func() { d.admit(ctx, s) })
	}
}

// enter adds a source to those being admitted, or returns nil if there is no room for it.
// If it evicts one for that, it waits, without mu, until that one has been released: of
// many that come at once, each needs room of its own. cancel ends the admission.
func (d *datagrams) enter(in *inlet, e *endpoint, cancel func()) *source {
	sender, _ := credentials(e.sock.fd)
	s := &source{
		number: sources.Add(1),
		e:      e,
		d:      d,
		in:     in,
		sender: sender,
		memory: budget.Account{Budget: budget.Process, Datagrams: true},
		cancel: cancel,
		over:   make(chan struct{}),
		freed:  make(chan struct{}),
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.entering)+len(d.sources) >= maxSources {
		other := d.evict(s, 0)
		if other == nil {
			return nil
		}
		d.mu.Unlock()
		<-other.freed
		d.mu.Lock()
	}
	d.entering = append(d.entering, s)
	return s
}

// admit is a source's goroutine: it accepts the sender's connection, and stays until the
// source has ended.
func (d *datagrams) admit(ctx context.Context, s *source) {
	defer s.cancel()
	if err := s.open(ctx); !d.add(s, err) {
		s.markGone()
		s.release()
		return
	}
	s.watch()
}

// add moves a source from entering to sources, after those before it of the same sender,
// for which it waits, without mu. It returns false if opened, the error of its open, is not
// nil, or the source has been evicted, or its inlet is closed.
func (d *datagrams) add(s *source, opened error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for opened == nil && s.state == entering && d.predecessorEnters(s) {
		d.admitted.Wait()
	}
	d.entering = slices.DeleteFunc(d.entering, func(other *source) bool { return other == s })
	d.admitted.Broadcast()
	if opened != nil || s.state != entering || !slices.Contains(d.inlets, s.in) {
		return false
	}
	s.state = receiving
	for _, b := range slices.Backward(d.sources) {
		if b.state != ended && b.sameSender(s) {
			s.predecessor = b
			break
		}
	}
	d.sources = append(d.sources, s)
	d.activity++
	s.lastActivity = d.activity
	if !s.tryArm() {
		d.startPolling(s)
		d.notify()
	}
	return true
}

// predecessorEnters reports whether an earlier lane of the same sender is still being
// admitted: the sender has confirmed that one before it began with this one. Called with mu held.
func (d *datagrams) predecessorEnters(s *source) bool {
	i := slices.IndexFunc(d.entering, func(b *source) bool { return b == s || b.sameSender(s) })
	return d.entering[i] != s
}

// sameSender reports whether two sources have the same sender and the same receiver: no two sockets
// of a user have the same address, and another user could claim any.
func (s *source) sameSender(other *source) bool {
	return s.in == other.in && s.sender.Uid == other.sender.Uid && s.e.remote == other.e.remote && s.e.local == other.e.local
}

// remove takes a source out of sources, and returns its memory to the budget.
func (d *datagrams) remove(s *source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.memory.Release(s.memory.Bytes())
	d.sources = slices.DeleteFunc(d.sources, func(other *source) bool { return other == s })
}

// startPolling makes Receive poll a source. Called with mu held.
func (d *datagrams) startPolling(s *source) {
	if !slices.Contains(d.polled, s) {
		d.polled = append(d.polled, s)
	}
}

// stopPolling makes Receive stop polling a source. Called with mu held.
func (d *datagrams) stopPolling(s *source) {
	if i := slices.Index(d.polled, s); i >= 0 {
		d.polled = slices.Delete(d.polled, i, i+1)
		if i < d.nextPolled {
			d.nextPolled--
		}
	}
}

// senderRang makes Receive poll a source whose sender has rung.
func (d *datagrams) senderRang(s *source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.state == receiving {
		d.startPolling(s)
		d.notify()
	}
}

// Receive implements [fabric.DatagramEndpoint]. Each call begins with another sender
// than the last, so that all have their turn. It returns after datagrams that the filter
// has dropped, and if it returns none, calls notify to be called again.
func (d *datagrams) Receive(ds []fabric.Datagram) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.checkOne()
	dropped, waits := 0, false
	for looks := len(d.polled); looks > 0 && n < len(ds) && dropped == 0; looks-- {
		if d.nextPolled >= len(d.polled) {
			d.nextPolled = 0
		}
		s := d.polled[d.nextPolled]
		d.nextPolled++
		if s.waitsForPredecessor() {
			waits = true
			continue
		}
		var wanted int
		wanted, dropped = s.receive(ds[n:])
		n += wanted
		if wanted+dropped > 0 {
			d.activity++
			s.lastActivity, s.emptyPolls = d.activity, 0
		} else if s.emptyPolls++; s.emptyPolls*len(d.polled) > spin && s.tryArm() {
			d.stopPolling(s)
		}
	}
	if n == 0 && (dropped > 0 || waits) {
		d.notify()
	}
	return n
}

// checkOne polls one source, the next at each call: its sender may have sent without ringing,
// or the source's goroutine has not run since. Called with mu held.
func (d *datagrams) checkOne() {
	if d.nextChecked++; d.nextChecked >= len(d.sources) {
		d.nextChecked = 0
	}
	if d.nextChecked < len(d.sources) {
		if s := d.sources[d.nextChecked]; s.state == receiving && s.arrived() {
			d.startPolling(s)
		}
	}
}

// Arm implements [fabric.DatagramEndpoint].
func (d *datagrams) Arm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.polled = slices.DeleteFunc(d.polled, (*source).tryArm)
}
