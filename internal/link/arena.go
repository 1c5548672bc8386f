package link

import (
	"math/bits"
	"slices"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// arena gives out memory that the peer may write to: pieces of slabs, which are
// registered when they are first needed. Sizes are powers of two from
// [wire.MinRing] up. Guarded by Link.mu.
type arena struct {
	register func(n int) (fabric.Memory, error)
	slabSize int // of slabs; a larger piece gets one of its own
	slabs    []*slab
}

// slab is registered memory cut into halves of halves. free has, by order, the
// offsets of pieces of wire.MinRing << order.
type slab struct {
	memory fabric.Memory
	size   int
	free   [][]int
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

// take returns a piece of the given size.
func (a *arena) take(size int) (piece, error) {
	for _, s := range a.slabs {
		if at, ok := s.take(size); ok {
			return piece{s, at, size}, nil
		}
	}
	if err := a.grow(max(size, a.slabSize)); err != nil {
		return piece{}, err
	}
	s := a.slabs[len(a.slabs)-1]
	at, _ := s.take(size)
	return piece{s, at, size}, nil
}

// grow registers another slab.
func (a *arena) grow(size int) error {
	memory, err := a.register(size)
	if err != nil {
		return err
	}
	s := &slab{memory: memory, size: size, free: make([][]int, order(size)+1)}
	s.free[order(size)] = []int{0}
	a.slabs = append(a.slabs, s)
	return nil
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
func (a *arena) give(p piece) {
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
}
