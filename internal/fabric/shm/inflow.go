//go:build linux

package shm

// The senders that a queue pair for datagrams receives from: how they are admitted, who
// has to make room, and whom Receive looks at.

import (
	"slices"
	"sync"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// maxSources is how many senders a queue pair receives from at a time. For one
// more, the one that has been silent for longest has to connect anew.
const maxSources = 1024

// inflow is what a queue pair has of its senders. It is guarded by datagrams.mu.
type inflow struct {
	entering []*source // are not among the sources yet, the oldest first
	admitted sync.Cond // is told when one of those is, or has failed
	sources  []*source // the oldest first
	turns    int       // counts how often one has come, or something was received of one

	// awake are the sources that Receive looks at, beginning with that at next. The
	// others have nothing, and wake this process when they do: so who says nothing
	// costs nothing.
	awake []*source
	next  int
	other int // which of all sources Receive has looked at besides
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

// enter begins with one more source, or returns nil if there is no room for it. It waits
// until who makes room has gone: of many who come at once, each has to have room of its own.
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
// received, unless one is about to give everything back anyway, and returns that. Where all
// those together have less than the bytes that are missing it returns nil, ends none, and
// has Receive look at all: they may have kept from this process that they have something.
// Called with mu held.
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

// admit has a sender connect, and is its source's goroutine from then on.
func (d *datagrams) admit(s *source) {
	if err := s.open(); !d.add(s, err) {
		s.tell()
		s.release()
		return
	}
	s.watch()
}

// add puts a source that has been opened among the others, behind those before it of the
// same sender. It returns false if that is of no use any more, or opening has failed.
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

// isBehind says whether another lane of the same sender is about to enter that has done so
// before: the sender had that confirmed before it began with this one. It has to be the
// same process, for another could stop there for as long as it likes. Called with mu held.
func (d *datagrams) isBehind(s *source) bool {
	i := slices.IndexFunc(d.entering, func(b *source) bool {
		return b == s || b.isOf(s) && b.process == s.process && s.process != 0
	})
	return d.entering[i] != s
}

// isOf says whether two sources are of the same sender, and for the same receiver, by what
// they say.
func (s *source) isOf(other *source) bool {
	return s.in == other.in && s.e.remote == other.e.remote && s.e.local == other.e.local
}

// follow has a new source wait for what its sender has sent before, on a lane that this
// one replaces: all that has arrived there by now. Called with mu held.
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

// remove takes a source out.
func (d *datagrams) remove(s *source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sources = slices.DeleteFunc(d.sources, func(other *source) bool { return other == s })
}

// rouse has Receive look at a source. Called with mu held.
func (d *datagrams) rouse(s *source) {
	if !slices.Contains(d.awake, s) {
		d.awake = append(d.awake, s)
	}
}

// lay has Receive not look at a source any more. Called with mu held.
func (d *datagrams) lay(s *source) {
	if i := slices.Index(d.awake, s); i >= 0 {
		d.awake = slices.Delete(d.awake, i, i+1)
		if i < d.next {
			d.next--
		}
	}
}

// wake is what the doorbell of a source does.
func (d *datagrams) wake(s *source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.state == hearing {
		d.rouse(s)
		d.notify()
	}
}

// Receive implements [fabric.DatagramEndpoint]. Each call begins with another sender
// than the last, so that none keeps it from the others. It comes back from a flood of
// which nothing is wanted, and has itself called again.
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

// glance looks at one source, another each time: one that has something may not have woken
// this process, or this process has not had the time to wake. Called with mu held.
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
