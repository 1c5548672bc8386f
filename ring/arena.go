package ring

import (
	"math/bits"
	"slices"
)

// Memory is registered memory, to which the peer may write.
type Memory interface {
	// Bytes returns the memory itself.
	Bytes() []byte

	// Addr and RKey name it to the peer.
	Addr() uint64
	RKey() uint32
}

// Arena cuts registered memory into rings: slabs into halves of halves. It registers none, but says what it
// lacks. Sizes are in bytes, and those of pieces powers of two.
type Arena struct {
	smallest int // of pieces
	slabSize int // of slabs at most; a larger piece gets one of its own
	size     int // of all slabs together
	taken    int // of that, in pieces
	slabs    []*Slab

	// spare is a piece for a ring to shrink to when no memory is free. It is set aside
	// while rings are larger than at first, unless one has just shrunk to it.
	spare     Piece
	spareSize int // 0: none is set aside
}

// Slab is registered memory cut into pieces.
type Slab struct {
	Memory Memory // of which it is
	size   int
	free   [][]int // by order, the offsets of pieces of smallest << order
	stays  bool    // whatever is in it
}

// Size returns how many bytes the slab has.
func (s *Slab) Size() int { return s.size }

// Piece is a part of a slab. The zero Piece is none.
type Piece struct {
	slab *Slab
	at   int
	size int
}

// Size returns how many bytes the piece has.
func (p Piece) Size() int { return p.size }

// Memory returns that of the slab.
func (p Piece) Memory() Memory { return p.slab.Memory }

// Bytes returns the memory of the piece.
func (p Piece) Bytes() []byte { return p.slab.Memory.Bytes()[p.at : p.at+p.size : p.at+p.size] }

// Addr returns where the peer writes to the piece.
func (p Piece) Addr() uint64 { return p.slab.Memory.Addr() + uint64(p.at) }

// NewArena returns an arena without memory. Pieces have smallest bytes at least, and slabs are to have slabSize at most.
// Both are powers of two.
func NewArena(slabSize, smallest int) Arena { return Arena{slabSize: slabSize, smallest: smallest} }

// Size returns how many bytes all slabs have together.
func (a *Arena) Size() int { return a.size }

// Taken returns how many bytes are in pieces.
func (a *Arena) Taken() int { return a.taken }

// Slabs returns the slabs, which are the arena's.
func (a *Arena) Slabs() []*Slab { return a.slabs }

// order is the power of two by which size exceeds that of the smallest piece.
func (a *Arena) order(size int) int { return bits.Len(uint(size/a.smallest)) - 1 }

// NextSlab is how many bytes the next slab is best to have, for a piece of the given size: as many as all before it, so
// that half of the memory is in use when there is little, and few keys name it when there is much.
func (a *Arena) NextSlab(size int) int {
	return max(size, min(1<<bits.Len(uint(a.size))>>1, a.slabSize))
}

// Take returns a piece of the given size, or else how many bytes the slab has at least that it lacks for that.
func (a *Arena) Take(size int) (p Piece, lacks int) {
	if p, ok := a.find(size); ok {
		return p, 0
	}
	return Piece{}, size
}

// TakeToGrow is Take for a ring that is to grow. It sets the spare aside, of the size first, for the ring to shrink to.
func (a *Arena) TakeToGrow(size, first int) (p Piece, lacks int) {
	if a.spareSize > 0 {
		return a.Take(size)
	}
	spare, lacks := a.Take(first)
	if lacks > 0 {
		return Piece{}, lacks
	}
	if p, lacks = a.Take(size); lacks > 0 {
		a.Give(spare)
		return Piece{}, lacks
	}
	a.spare, a.spareSize = spare, first
	return p, 0
}

// TakeToShrink returns a piece for a ring that frees a larger one, if that needs no more
// memory.
func (a *Arena) TakeToShrink(size int) (Piece, bool) {
	p, ok := a.find(size)
	if !ok && a.spare.size == size {
		p, a.spare = a.spare, Piece{}
		return p, true
	}
	return p, ok
}

// DropSpare gives the spare back. It is called when no ring is larger than at first.
func (a *Arena) DropSpare() {
	p := a.spare
	a.spare, a.spareSize = Piece{}, 0
	if p.size > 0 {
		a.Give(p)
	}
}

// find returns a piece of a slab that exists.
func (a *Arena) find(size int) (Piece, bool) {
	for _, s := range a.slabs {
		if at, ok := a.cut(s, size); ok {
			a.taken += size
			return Piece{s, at, size}, true
		}
	}
	return Piece{}, false
}

// Add makes a slab of n bytes of memory. One that stays is never empty.
func (a *Arena) Add(memory Memory, n int, stays bool) {
	s := &Slab{Memory: memory, size: n, free: make([][]int, a.order(n)+1), stays: stays}
	s.free[a.order(n)] = []int{0}
	a.slabs = append(a.slabs, s)
	a.size += n
}

// empty reports whether all of the slab is free, and it may go.
func (s *Slab) empty() bool { return len(s.free[len(s.free)-1]) > 0 && !s.stays }

// TakeEmpty takes a slab out in which nothing is, for its caller to free; nil: there is none.
func (a *Arena) TakeEmpty() *Slab {
	for i, s := range a.slabs {
		if s.empty() {
			a.slabs = slices.Delete(a.slabs, i, i+1)
			return s
		}
	}
	return nil
}

// Freed notes that a slab that was taken out is freed.
func (a *Arena) Freed(s *Slab) { a.size -= s.size }

// Keep takes a slab back that cannot be freed.
func (a *Arena) Keep(s *Slab) {
	s.stays = true
	a.slabs = append(a.slabs, s)
}

// cut takes a piece out of the smallest free one of a slab that is large enough.
func (a *Arena) cut(s *Slab, size int) (at int, ok bool) {
	want := a.order(size)
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
		s.free[have-1] = append(s.free[have-1], at+a.smallest<<(have-1))
	}
	return at, true
}

// Give takes a piece back, and joins it with its other half if that is free too.
// It reports whether that leaves a slab that may be freed.
func (a *Arena) Give(p Piece) (empty bool) {
	a.taken -= p.size
	free := p.slab.free
	at, o := p.at, a.order(p.size)
	for ; o < len(free)-1; o++ {
		other := slices.Index(free[o], at^a.smallest<<o)
		if other < 0 {
			break
		}
		free[o] = slices.Delete(free[o], other, other+1)
		at &^= a.smallest << o
	}
	free[o] = append(free[o], at)
	if a.spare.size < a.spareSize {
		a.spare, _ = a.find(a.spareSize)
	}
	return p.slab.empty()
}

// Spare returns the size of the piece to be set aside for rings to shrink to; 0: there is to be none.
func (a *Arena) Spare() int { return a.spareSize }

// SpareNow returns the size of the piece that is set aside; 0: there is none.
func (a *Arena) SpareNow() int { return a.spare.size }

// HasEmpty reports whether a slab may be freed.
func (a *Arena) HasEmpty() bool { return slices.ContainsFunc(a.slabs, (*Slab).empty) }
