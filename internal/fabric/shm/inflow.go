//go:build linux

package shm

// The senders that a queue pair for datagrams receives from: how they are admitted, which
// of them are evicted, and which of them Receive polls.

import (
	"slices"
	"sync"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// maxSources is how many senders a queue pair receives from at a time. One more
// evicts the one that has been silent for longest, which may connect anew.
const maxSources = 1024

// inflow is a queue pair's state of its senders. It is guarded by datagrams.mu.
type inflow struct {
	entering []*source // being admitted, the oldest first
	admitted sync.Cond // broadcast when one of those has been admitted, or has failed
	sources  []*source // the oldest first
	turns    int       // counts sources that were added, and times that one had datagrams

	// awake are the sources that Receive polls, beginning with that at next. The
	// others are armed: their senders ring when they send, so an idle sender costs
	// no polls.
	awake []*source
	next  int
	other int // index in sources of the one that glance has polled last
}

// accept admits senders until the inlet is closed.
func (d *datagrams) accept(in *inlet) {
	for {
		e, err := in.listener.Accept()
		if err != nil {
			return // closed: nothing else ends it
		}
		s := d.enter(in, e.(*endpoint))
		if s == nil {
			e.(*endpoint).turnAway(wire.Full)
			continue
		}
		d.lanes.Go(func() { d.admit(s) })
	}
}

// enter adds a source to those being admitted, or returns nil if there is no room for it.
// If it evicts one for that, it waits, without mu, until that one has been released: of
// many that come at once, each needs room of its own.
func (d *datagrams) enter(in *inlet, e *endpoint) *source {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.entering)+len(d.sources) >= maxSources {
		other := d.evict(0)
		if other == nil {
			return nil
		}
		d.mu.Unlock()
		<-other.freed
		d.mu.Lock()
	}
	s := &source{
		number:  sources.Add(1),
		e:       e,
		d:       d,
		in:      in,
		process: e.sock.process(),
		memory:  budget.Account{Budget: budget.Process, Datagrams: true},
		over:    make(chan struct{}),
		freed:   make(chan struct{}),
	}
	d.entering = append(d.entering, s)
	return s
}

// evict ends the source that has been silent for longest, of those from which all has been
// received, and returns it; if one has ended already but is not released yet, it returns
// that. If all those together have fewer bytes than are missing, it ends none, returns nil,
// and makes Receive poll all sources: their senders may have sent without ringing. Called
// with mu held.
func (d *datagrams) evict(missing int) *source {
	for {
		var first *source
		spare := 0
		for _, s := range d.sources {
			if s.state == fading || s.state == hearing && s.arrived() {
				continue
			}
			spare += s.size
			if first == nil || s.state == deaf || first.state != deaf && s.heard < first.heard {
				first = s
			}
		}
		if first == nil || spare < missing {
			d.awake = slices.DeleteFunc(slices.Clone(d.sources), func(s *source) bool { return s.state == deaf })
			d.notify()
			return nil
		}
		if first.fade(); first.state == deaf {
			return first
		}
	}
}

// admit is a source's goroutine: it accepts the sender's connection, and stays until the
// source has ended.
func (d *datagrams) admit(s *source) {
	if err := s.open(); !d.add(s, err) {
		s.tell()
		s.release()
		return
	}
	s.watch()
}

// add moves a source from entering to sources, after those before it of the same sender,
// for which it waits, without mu. It returns false if opened, the error of its open, is not
// nil, or its inlet is closed.
func (d *datagrams) add(s *source, opened error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for opened == nil && d.isBehind(s) {
		d.admitted.Wait()
	}
	d.entering = slices.DeleteFunc(d.entering, func(other *source) bool { return other == s })
	d.admitted.Broadcast()
	if opened != nil || !slices.Contains(d.inlets, s.in) {
		return false
	}
	d.follow(s)
	d.sources = append(d.sources, s)
	d.turns++
	s.heard = d.turns
	if !s.rest() {
		d.rouse(s)
		d.notify()
	}
	return true
}

// isBehind reports whether an earlier lane of the same sender is still being admitted: the
// sender has confirmed that one before it began with this one. Lanes of other processes do
// not count, for these could stay unconfirmed as long as they like. Called with mu held.
func (d *datagrams) isBehind(s *source) bool {
	i := slices.IndexFunc(d.entering, func(b *source) bool {
		return b == s || b.isOf(s) && b.process == s.process && s.process != 0
	})
	return d.entering[i] != s
}

// isOf reports whether two sources have the same sender and the same receiver, by the
// addresses that they claim.
func (s *source) isOf(other *source) bool {
	return s.in == other.in && s.e.remote == other.e.remote && s.e.local == other.e.local
}

// follow makes a new source wait until Receive has taken what has arrived by now on the
// lane of the same sender that this one replaces. Called with mu held.
func (d *datagrams) follow(s *source) {
	for _, b := range slices.Backward(d.sources) {
		if b.state == deaf || !b.isOf(s) {
			continue
		}
		if !b.arrived() {
			s.before, s.until = b.before, b.until
		} else {
			s.before, s.until = b, b.arrivedUntil()
			d.rouse(b)
			d.notify()
		}
		return
	}
}

// remove takes a source out of sources.
func (d *datagrams) remove(s *source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sources = slices.DeleteFunc(d.sources, func(other *source) bool { return other == s })
}

// rouse makes Receive poll a source. Called with mu held.
func (d *datagrams) rouse(s *source) {
	if !slices.Contains(d.awake, s) {
		d.awake = append(d.awake, s)
	}
}

// lay makes Receive stop polling a source. Called with mu held.
func (d *datagrams) lay(s *source) {
	if i := slices.Index(d.awake, s); i >= 0 {
		d.awake = slices.Delete(d.awake, i, i+1)
		if i < d.next {
			d.next--
		}
	}
}

// wake makes Receive poll a source whose sender has rung.
func (d *datagrams) wake(s *source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.state == hearing {
		d.rouse(s)
		d.notify()
	}
}

// Receive implements [fabric.DatagramEndpoint]. Each call begins with another sender
// than the last, so that all have their turn. It returns after datagrams that the filter
// has dropped, and if it returns none, calls notify to be called again.
func (d *datagrams) Receive(ds []fabric.Datagram) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.glance()
	dropped, waits := 0, false
	for looks := len(d.awake); looks > 0 && n < len(ds) && dropped == 0; looks-- {
		if d.next >= len(d.awake) {
			d.next = 0
		}
		s := d.awake[d.next]
		d.next++
		if s.waits() {
			waits = true
			continue
		}
		var wanted int
		wanted, dropped = s.receive(ds[n:])
		n += wanted
		if wanted+dropped > 0 {
			d.turns++
			s.heard, s.vain = d.turns, 0
		} else if s.vain++; s.vain*len(d.awake) > spin && s.rest() {
			d.lay(s)
		}
	}
	if n == 0 && (dropped > 0 || waits) {
		d.notify()
	}
	return n
}

// glance polls one source, the next at each call: its sender may have sent without ringing,
// or the source's goroutine has not run since. Called with mu held.
func (d *datagrams) glance() {
	if d.other++; d.other >= len(d.sources) {
		d.other = 0
	}
	if d.other < len(d.sources) {
		if s := d.sources[d.other]; s.state == hearing && s.arrived() {
			d.rouse(s)
		}
	}
}

// Arm implements [fabric.DatagramEndpoint].
func (d *datagrams) Arm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.awake = slices.DeleteFunc(d.awake, (*source).rest)
}
