//go:build linux

package shm

// The senders that a queue pair for datagrams receives from: how they are admitted, who
// has to make room, and whom Receive looks at.

import (
	"slices"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// maxSources is how many senders a queue pair receives from at a time. For one
// more, the one that has been silent for longest has to connect anew.
const maxSources = 1024

// inflow is what a queue pair has of its senders. It is guarded by datagrams.mu.
type inflow struct {
	entering int       // senders that are not among the sources yet
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
		if !d.enter() {
			e.(*endpoint).turnAway(wire.Full)
			continue
		}
		d.lanes.Go(func() { d.admit(in, e.(*endpoint)) })
	}
}

// enter makes room for one more source.
func (d *datagrams) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.entering+len(d.sources) >= maxSources && d.evict() == nil {
		return false
	}
	d.entering++
	return true
}

// evict ends the source that has been silent for longest, of those from which all has been
// received. If there is none it returns nil, and has Receive look at all: they may have kept
// from this process that they have something. Called with mu held.
func (d *datagrams) evict() *source {
	var silent *source
	for _, s := range d.sources {
		if s.state == hearing && !s.arrived() && (silent == nil || s.heard < silent.heard) {
			silent = s
		}
	}
	if silent != nil {
		silent.end()
		return silent
	}
	d.awake = slices.DeleteFunc(slices.Clone(d.sources), func(s *source) bool { return s.state == deaf })
	d.notify()
	return nil
}

// admit has a sender connect, and is its source's goroutine from then on.
func (d *datagrams) admit(in *inlet, e *endpoint) {
	s := &source{
		number: sources.Add(1),
		e:      e,
		d:      d,
		in:     in,
		memory: budget.Account{Budget: budget.Process},
		over:   make(chan struct{}),
		freed:  make(chan struct{}),
	}
	if err := s.open(); !d.add(s, err) {
		s.tell()
		s.release()
		return
	}
	s.watch()
}

// add puts a source that has been opened among the others. It returns false if that is
// of no use any more, or opening has failed.
func (d *datagrams) add(s *source, opened error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entering--
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

// follow has a new source wait for what its sender has sent before, on a lane that this
// one replaces: all that has arrived there by now. Called with mu held.
func (d *datagrams) follow(s *source) {
	for _, b := range slices.Backward(d.sources) {
		if b.in != s.in || b.e.remote != s.e.remote || b.e.local != s.e.local {
			continue
		}
		if b.state == deaf || !b.arrived() {
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

// fade takes note that the sender of a source has gone.
func (d *datagrams) fade(s *source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.state == hearing && s.arrived() {
		s.state = fading
		d.rouse(s)
		d.notify()
	} else {
		s.end()
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
