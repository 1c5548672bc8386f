package link

import (
	"math/bits"
	"slices"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// arena gives out memory that the peer may write to: pieces of slabs, which are
// registered when they are first needed and within the link's account. Sizes are
// powers of two from [wire.MinRing] up. Guarded by Link.mu.
type arena struct {
	register func(n int) (fabric.Memory, error)
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
	age    int  // how often growOlder has found nothing in it
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

// take returns a piece of the given size, or a budget.ShortageError, or the device's error.
func (a *arena) take(size int) (piece, error) { return a.takeWithin(size, a.account.Reserve) }

// takeToGrow is take for a ring that is to grow. It leaves memory for what has to begin, and
// sets the spare aside, of the size first, for the ring to shrink to.
func (a *arena) takeToGrow(size, first int) (piece, error) {
	if !budget.MayGrow(a.taken, size+first, a.limit) {
		return piece{}, a.shortage(size)
	}
	if err := a.account.ReserveToGrow(0); err != nil {
		return piece{}, err
	}
	if a.spareSize > 0 {
		return a.takeWithin(size, a.account.ReserveToGrow)
	}
	spare, err := a.takeWithin(first, a.account.ReserveToGrow)
	if err != nil {
		return piece{}, err
	}
	p, err := a.takeWithin(size, a.account.ReserveToGrow)
	if err != nil {
		a.give(spare)
		return piece{}, err
	}
	a.spare, a.spareSize = spare, first
	return p, nil
}

// takeToShrink is take for a ring that frees a larger one.
func (a *arena) takeToShrink(size int) (piece, error) {
	p, err := a.take(size)
	if err != nil && a.spare.size == size {
		p, a.spare = a.spare, piece{}
		return p, nil
	}
	return p, err
}

// dropSpare gives the spare back. It is called when no ring is larger than at first.
func (a *arena) dropSpare() {
	p := a.spare
	a.spare, a.spareSize = piece{}, 0
	if p.size > 0 {
		a.give(p)
	}
}

// takeWithin returns a piece of a slab that exists, or of a new one, for which reserve
// reserves memory.
func (a *arena) takeWithin(size int, reserve func(n int) error) (piece, error) {
	if p, ok := a.find(size); ok {
		return p, nil
	}
	n := max(size, a.slabSize)
	if n > a.limit-a.size {
		return piece{}, a.shortage(n)
	}
	if err := reserve(n); err != nil {
		return piece{}, err
	}
	if err := a.add(n); err != nil {
		a.account.Release(n)
		return piece{}, err
	}
	p, _ := a.find(size)
	return p, nil
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

// add registers another slab of n bytes, which its caller has reserved.
func (a *arena) add(n int) error {
	memory, err := a.register(n)
	if err != nil {
		return err
	}
	s := &slab{memory: memory, size: n, free: make([][]int, order(n)+1)}
	s.free[order(n)] = []int{0}
	s.stays = len(a.slabs) == 0 // the peer's probes name a place in the first
	a.slabs = append(a.slabs, s)
	a.size += n
	return nil
}

// empty reports whether all of the slab is free.
func (s *slab) empty() bool { return len(s.free[len(s.free)-1]) > 0 }

// mayTrim reports whether a slab could be freed.
func (a *arena) mayTrim() bool {
	return slices.ContainsFunc(a.slabs, func(s *slab) bool { return !s.stays && s.empty() })
}

// growOlder increases the age of the slabs in which nothing is.
func (a *arena) growOlder() {
	for _, s := range a.slabs {
		if s.empty() {
			s.age++
		}
	}
}

// trimBatch is how many slabs are freed at a time: a device takes a while.
const trimBatch = 8

// trim frees slabs in which nothing is and that have the given age, and returns how many
// bytes; 0 says that there are no more.
func (a *arena) trim(age int) (freed int) {
	left := trimBatch
	a.slabs = slices.DeleteFunc(a.slabs, func(s *slab) bool {
		if left == 0 || s.stays || !s.empty() || s.age < age {
			return false
		}
		if s.stays = !s.memory.Free(); s.stays {
			return false
		}
		left--
		a.account.Release(s.size)
		a.size -= s.size
		freed += s.size
		return true
	})
	return freed
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
	s.age = 0
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
