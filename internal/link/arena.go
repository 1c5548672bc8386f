package link

import (
	"math/bits"
	"slices"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// arena gives out memory that the peer may write to: pieces of slabs, which are within the
// link's account. It says when another slab is to be registered, and registers none. Sizes
// are powers of two from [wire.MinRing] up. Guarded by Link.mu.
type arena struct {
	account  *budget.Account
	slabSize int // of slabs; a larger piece gets one of its own
	limit    int // of all slabs together: no peer makes this side register more
	size     int // of all slabs together
	taken    int // of that, in pieces
	slabs    []*slab

	// spare is a piece for a ring to shrink to when no memory is free. It is set aside
	// while rings are larger than at first, unless one has just shrunk to it.
	spare     piece
	spareSize int // 0: none is set aside
}

// slab is registered memory cut into halves of halves. free has, by order, the
// offsets of pieces of wire.MinRing << order.
type slab struct {
	memory fabric.Memory
	size   int
	free   [][]int
	stays  bool // whatever is in it
}

// piece is a part of a slab.
type piece struct {
	slab *slab
	at   int
	size int
}

func (p piece) bytes() []byte { return p.slab.memory.Bytes()[p.at : p.at+p.size : p.at+p.size] }

func (p piece) place() wire.RingPlace {
	return wire.RingPlace{Addr: p.slab.memory.Addr() + uint64(p.at), RKey: p.slab.memory.RKey(), Size: p.size}
}

// order is the power of two by which size exceeds wire.MinRing.
func order(size int) int { return bits.Len(uint(size/wire.MinRing)) - 1 }

// lack is that another slab has to be registered, of so many bytes, for which reserve
// reserves memory; or that the endpoint has to look for a ring of the peer's.
type lack struct {
	bytes   int
	reserve func(n int) error
	ring    wire.RingPlace
}

// take returns a piece of the given size, or what it lacks for that, or a
// budget.ShortageError.
func (a *arena) take(size int) (piece, *lack, error) { return a.takeWithin(size, a.account.Reserve) }

// takeToGrow is take for a ring that is to grow. It leaves memory for what has to begin, and
// sets the spare aside, of the size first, for the ring to shrink to.
func (a *arena) takeToGrow(size, first int) (piece, *lack, error) {
	if !budget.MayGrow(a.taken, size+first, a.limit) {
		return piece{}, nil, a.shortage(size)
	}
	if err := a.account.ReserveToGrow(0); err != nil {
		return piece{}, nil, err
	}
	if a.spareSize > 0 {
		return a.takeWithin(size, a.account.ReserveToGrow)
	}
	spare, lacks, err := a.takeWithin(first, a.account.ReserveToGrow)
	if spare.size == 0 {
		return piece{}, lacks, err
	}
	p, lacks, err := a.takeWithin(size, a.account.ReserveToGrow)
	if p.size == 0 {
		a.give(spare)
		return piece{}, lacks, err
	}
	a.spare, a.spareSize = spare, first
	return p, nil, nil
}

// takeToShrink returns a piece for a ring that frees a larger one, if that needs no more
// memory.
func (a *arena) takeToShrink(size int) (piece, bool) {
	p, ok := a.find(size)
	if !ok && a.spare.size == size {
		p, a.spare = a.spare, piece{}
		return p, true
	}
	return p, ok
}

// dropSpare gives the spare back. It is called when no ring is larger than at first.
func (a *arena) dropSpare() {
	p := a.spare
	a.spare, a.spareSize = piece{}, 0
	if p.size > 0 {
		a.give(p)
	}
}

// takeWithin returns a piece of a slab, or lacks one, for which reserve reserves memory.
func (a *arena) takeWithin(size int, reserve func(n int) error) (piece, *lack, error) {
	if p, ok := a.find(size); ok {
		return p, nil, nil
	}
	n := max(size, a.slabSize)
	if n > a.limit-a.size {
		return piece{}, nil, a.shortage(n)
	}
	return piece{}, &lack{bytes: n, reserve: reserve}, nil
}

// shortage says that n bytes more would exceed the link's limit.
func (a *arena) shortage(n int) error {
	return &budget.ShortageError{Wanted: n, Used: a.size, Limit: a.limit, Of: budget.LinkMemory}
}

// find returns a piece of a slab that exists.
func (a *arena) find(size int) (piece, bool) {
	for _, s := range a.slabs {
		if at, ok := s.take(size); ok {
			a.taken += size
			return piece{s, at, size}, true
		}
	}
	return piece{}, false
}

// add makes a slab of n bytes of memory, which its caller has reserved.
func (a *arena) add(memory fabric.Memory, n int) {
	s := &slab{memory: memory, size: n, free: make([][]int, order(n)+1)}
	s.free[order(n)] = []int{0}
	s.stays = len(a.slabs) == 0 // the peer's probes name a place in the first
	a.slabs = append(a.slabs, s)
	a.size += n
}

// empty reports whether all of the slab is free.
func (s *slab) empty() bool { return len(s.free[len(s.free)-1]) > 0 }

// takeEmpty takes a slab out in which nothing is, for its caller to free; nil: there is none.
func (a *arena) takeEmpty() *slab {
	for i, s := range a.slabs {
		if !s.stays && s.empty() {
			a.slabs = slices.Delete(a.slabs, i, i+1)
			return s
		}
	}
	return nil
}

// freed notes that a slab that was taken out is freed.
func (a *arena) freed(s *slab) {
	a.account.Release(s.size)
	a.size -= s.size
}

// keep takes a slab back that cannot be freed.
func (a *arena) keep(s *slab) {
	s.stays = true
	a.slabs = append(a.slabs, s)
}

// take cuts a piece out of the smallest free one that is large enough.
func (s *slab) take(size int) (at int, ok bool) {
	want := order(size)
	have := want
	for have < len(s.free) && len(s.free[have]) == 0 {
		have++
	}
	if have >= len(s.free) {
		return 0, false
	}
	last := len(s.free[have]) - 1
	at = s.free[have][last]
	s.free[have] = s.free[have][:last]
	for ; have > want; have-- {
		s.free[have-1] = append(s.free[have-1], at+wire.MinRing<<(have-1))
	}
	return at, true
}

// give takes a piece back, and joins it with its other half if that is free too.
// It returns whether that leaves a slab that may be freed.
func (a *arena) give(p piece) bool {
	a.taken -= p.size
	free := p.slab.free
	at, o := p.at, order(p.size)
	for ; o < len(free)-1; o++ {
		other := slices.Index(free[o], at^wire.MinRing<<o)
		if other < 0 {
			break
		}
		free[o] = slices.Delete(free[o], other, other+1)
		at &^= wire.MinRing << o
	}
	free[o] = append(free[o], at)
	if a.spare.size < a.spareSize {
		a.spare, _ = a.find(a.spareSize)
	}
	return p.slab.empty() && !p.slab.stays
}
