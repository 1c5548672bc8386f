package link

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

// A device may take tens of milliseconds for each MiB that it registers, and for what it frees. So a link
// registers and frees memory without its lock: for a buffer in the call that makes it, and for rings in a
// goroutine, registerSlabs, which lives as long as somebody waits for such memory, or for the
// peer's (reach.go).

// memoryLine is who waits for memory for a ring. Guarded by Link.mu.
type memoryLine struct {
	beginning []want // streams, which go first
	growing   []want // rings
	served    bool   // registerSlabs is under way
}

// want is for memory that is registered. try takes what it needs. If it lacks any it says so, and
// is called again when there is more. Otherwise it is called with why there is no more, and
// then lacks nothing.
type want struct {
	try     func(err error) *lack
	growsTo int // the size of the ring that is to grow; 0: it is for what begins
}

// lack is that another slab has to be registered, of so many bytes at least, or as much staging memory; or that the
// endpoint has to look for a ring of the peer's.
type lack struct {
	bytes   int
	staging bool
	ring    wire.RingPlace
}

// growing is the want of a stream of a larger ring.
func (l *Link) growing(s *machine.Stream) want {
	return want{growsTo: s.GrowsTo(), try: func(err error) *lack {
		if n := s.Grow(err); n > 0 {
			return &lack{bytes: n}
		}
		return nil
	}}
}

// growingStaging is the want of larger staging memory.
func (l *Link) growingStaging() want {
	return want{try: func(err error) *lack {
		n := l.m.StagingGrows()
		switch {
		case n == 0:
			return nil
		case err != nil:
			l.m.GrowStaging(nil, 0)
			return nil
		}
		return &lack{bytes: n, staging: true}
	}}
}

// tryFor tries to have what is wanted. What is to grow leaves memory for what has to begin.
func (l *Link) tryFor(w want) *lack {
	if w.growsTo > 0 {
		if err := l.mayGrow(w.growsTo); err != nil {
			return w.try(err)
		}
	}
	return w.try(nil)
}

// mayGrow returns why a ring must not grow to a size, or nil.
func (l *Link) mayGrow(size int) error {
	rings, limit := l.m.Rings(), l.cfg.remoteMemory()
	if !budget.MayGrow(rings.Taken(), size+l.cfg.firstRing(), limit) {
		return &budget.ShortageError{Wanted: size, Used: rings.Size(), Limit: limit, Of: budget.LinkMemory}
	}
	return l.memory.account.ReserveToGrow(0)
}

// reserve reserves the memory that is lacking, and returns how many bytes: for a slab as many as it is best to have, or
// fewer where memory is short, within what a link may have for rings, for no peer makes this side register more.
func (l *Link) reserve(lacks *lack, grows bool) (n int, err error) {
	if lacks.staging {
		return lacks.bytes, l.memory.account.ReserveToGrow(lacks.bytes)
	}
	size, limit := l.m.Rings().Size(), l.cfg.remoteMemory()
	for n = l.m.Rings().NextSlab(lacks.bytes); ; n /= 2 {
		switch {
		case n > limit-size:
			err = &budget.ShortageError{Wanted: n, Used: size, Limit: limit, Of: budget.LinkMemory}
		case grows || n > lacks.bytes:
			err = l.memory.account.ReserveToGrow(n)
		default:
			err = l.memory.account.Reserve(n)
		}
		if err == nil || n == lacks.bytes {
			return n, err
		}
	}
}

// getInLine tries to have what is wanted, and has that wait in line for what it lacks.
func (l *Link) getInLine(line *[]want, w want) {
	if l.tryFor(w) == nil {
		return
	}
	*line = append(*line, w)
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
		from := &line.beginning
		if len(*from) == 0 {
			from = &line.growing
		}
		if len(*from) == 0 {
			line.served = false
			return
		}
		w := (*from)[0]
		*from = slices.Delete(*from, 0, 1)
		for lacks := l.tryFor(w); lacks != nil; {
			lacks = w.try(l.addSlab(lacks, w.growsTo > 0))
		}
	}
}

// addSlab registers another slab of the rings, when the link has a queue pair, or looks for a ring
// of the peer's. It releases mu meanwhile.
func (l *Link) addSlab(lacks *lack, grows bool) error {
	l.awaitPath()
	if l.m.Stage() != machine.Up {
		return machine.ErrGoingAway
	}
	if lacks.ring.Size > 0 {
		return l.look(lacks.ring)
	}
	access := fabric.RemoteWrite
	if lacks.staging {
		access = fabric.LocalWrite
	}
	n, err := l.reserve(lacks, grows)
	if err != nil {
		return err
	}
	memory, err := l.register(n, access)
	switch {
	case err == nil && lacks.staging:
		l.m.GrowStaging(memory, n)
	case err == nil:
		l.m.Rings().Add(memory, n, false)
		l.m.ShrinkLater() // it may be of no use any more
	case l.m.Stage().Pathless():
		return nil // another device may register it
	case l.m.Stage() != machine.Up:
		return machine.ErrGoingAway // and that may be why
	}
	return err
}

// register registers n bytes, which its caller has reserved and which are given back if it
// fails. It releases mu meanwhile, while the link is up. In the end it
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
		l.m.ConnectionChanged(err) // Wait has yet to return it
	}
	return memory, err
}

// free frees memory that nothing uses any more, and returns whether the fabric can. It releases mu
// meanwhile while the link is up, as register does. The endpoint stays until then.
func (l *Link) free(m fabric.Memory) bool {
	if l.m.Stage() != machine.Up {
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
// registered it waits, until ctx ends or Config.HandshakeTimeout has passed. It
// releases mu meanwhile.
func (l *Link) awaitRing(ctx context.Context) (held ring.Piece, err error) {
	var (
		done = make(chan struct{})
		left bool // the call waits no more
	)
	l.getInLine(&l.memory.line.beginning, want{try: func(fault error) *lack {
		if left {
			return nil
		}
		if err = fault; err == nil {
			var lacks int
			if held, lacks = l.m.TakeRing(); lacks > 0 {
				return &lack{bytes: lacks}
			}
		}
		close(done)
		return nil
	}})
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
		return ring.Piece{}, cmp.Or(ctx.Err(), machine.ErrGoingAway)
	}
}
