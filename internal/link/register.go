package link

import (
	"cmp"
	"context"
	"errors"

	"github.com/ringnet/ringnet/internal/fabric"
)

// A device may take tens of milliseconds for each MiB that it registers, and for what it frees. So a link
// registers and frees memory without its lock: for a buffer in the call that makes it, and for rings in a
// goroutine, registerSlabs, which lives as long as somebody waits for such memory, or for the
// peer's (reach.go).

// memoryLine is who waits for memory for a ring. Guarded by Link.mu.
type memoryLine struct {
	beginning queue[attempt] // streams, which go first
	growing   queue[attempt] // rings
	served    bool           // registerSlabs is under way
}

// attempt takes what it needs of memory that is registered. If it lacks any it says so, and
// is called again when there is more. Otherwise it is called with why there is no more, and
// then lacks nothing. Called with mu held.
type attempt func(err error) *lack

// getInLine makes an attempt, and has it wait in line for what it lacks. Called with mu held.
func (l *Link) getInLine(line *queue[attempt], try attempt) {
	if try(nil) == nil {
		return
	}
	line.push(try)
	if !l.memory.line.served {
		l.memory.line.served = true
		l.path.work.Go(l.registerSlabs)
	}
}

// registerSlabs registers memory for those who wait in line, one after the other.
func (l *Link) registerSlabs() {
	l.lock()
	defer l.unlock()
	for line := &l.memory.line; ; {
		var try attempt
		switch {
		case line.beginning.len() > 0:
			try = line.beginning.pop()
		case line.growing.len() > 0:
			try = line.growing.pop()
		default:
			line.served = false
			return
		}
		for lacks := try(nil); lacks != nil; {
			lacks = try(l.addSlab(lacks))
		}
	}
}

// addSlab registers another slab of the rings, when the link has a queue pair, or looks for a ring
// of the peer's. Called with mu held, which it releases meanwhile.
func (l *Link) addSlab(lacks *lack) error {
	l.awaitPath()
	if l.stage != up {
		return errLeaving
	}
	if lacks.ring.Size > 0 {
		return l.look(lacks.ring)
	}
	if err := lacks.reserve(lacks.bytes); err != nil {
		return err
	}
	memory, err := l.register(lacks.bytes, fabric.RemoteWrite)
	switch {
	case err == nil:
		l.memory.rings.add(memory, lacks.bytes)
		l.shrinkLater() // it may be of no use any more
	case l.stage.pathless():
		return nil // another device may register it
	case l.stage != up:
		return errLeaving // and that may be why
	}
	return err
}

// register registers n bytes, which its caller has reserved and which are given back if it
// fails. Called with mu held, which it releases meanwhile, while the link is up. In the end it
// may have lost its queue pair, but it has the same endpoint, since beginMove waits. For that
// not to be closed, the caller owns something of the link, or is one of path.work.
func (l *Link) register(n int, a fabric.Access) (fabric.Memory, error) {
	ep := l.ep
	l.memory.registering.Add(1)
	l.unlock()
	memory, err := ep.Register(n, a)
	l.lock()
	l.memory.registering.Done()
	if err != nil {
		l.memory.account.Release(n)
	}
	if errors.Is(err, fabric.ErrDeviceRemoved) {
		l.changed(err) // Wait has yet to return it
	}
	return memory, err
}

// free frees memory that nothing uses any more, and returns whether the fabric can. Called with mu held,
// which it releases meanwhile while the link is up, as register does. The endpoint stays until then.
func (l *Link) free(m fabric.Memory) bool {
	if l.stage != up {
		return m.Free()
	}
	l.memory.registering.Add(1)
	l.path.work.Add(1)
	l.unlock()
	freed := m.Free()
	l.lock()
	l.path.work.Done()
	l.memory.registering.Done()
	return freed
}

// awaitRing returns memory for the ring that a stream begins with. If that has to be
// registered it waits, until ctx ends or Config.HandshakeTimeout has passed. Called with mu held,
// which it releases meanwhile.
func (l *Link) awaitRing(ctx context.Context) (held piece, err error) {
	var (
		done = make(chan struct{})
		left bool // the call waits no more
	)
	l.getInLine(&l.memory.line.beginning, func(fault error) (lacks *lack) {
		if left {
			return nil
		}
		if err = fault; err == nil {
			if held, lacks, err = l.memory.rings.take(l.cfg.firstRing()); lacks != nil {
				return lacks
			}
		}
		close(done)
		return nil
	})
	select {
	case <-done:
		return held, err
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.HandshakeTimeout)
	defer cancel()
	l.unlock()
	select {
	case <-done:
	case <-ctx.Done():
	case <-l.gone:
	}
	l.lock()
	select {
	case <-done:
		return held, err
	default:
		left = true
		return piece{}, cmp.Or(ctx.Err(), errLeaving)
	}
}

// giveRing returns a piece of memory, and has the link look later for slabs to free. Called
// with mu held.
func (l *Link) giveRing(p piece) {
	if l.memory.rings.give(p) {
		l.shrinkLater()
	}
}
