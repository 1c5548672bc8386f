package ring

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// at returns an empty ring whose next byte has position pos.
func at(pos uint64, size int) *Ring {
	r := New(make([]byte, size))
	r.head, r.tail = pos, pos
	return r
}

// put commits n bytes that continue the count of next, as a producer does.
func put(r *Ring, n int, next *byte) {
	first, second := r.Reserve(n)
	for _, part := range [][]byte{first, second} {
		for i := range part {
			part[i] = *next
			*next++
		}
	}
	r.Commit(len(first) + len(second))
}

func TestNewTakesPowersOfTwoOnly(t *testing.T) {
	for _, size := range []int{0, 3, 6, 12, 4095, 4097} {
		require.PanicsWithValue(t, fmt.Sprintf("ring: size %d is not a power of two", size), func() { New(make([]byte, size)) })
	}
	for _, size := range []int{1, 2, 4, 4096} {
		r := New(make([]byte, size))
		require.Equal(t, size, r.Size())
		require.Equal(t, size, r.Free())
		require.Zero(t, r.Len())
		require.Zero(t, r.Head())
		require.Zero(t, r.Tail())
	}
}

func TestMisusePanics(t *testing.T) {
	r := at(6, 8)
	next := byte(0)
	put(r, 5, &next)

	require.PanicsWithValue(t, "ring: commit of 4 bytes with 3 free", func() { r.Commit(4) })
	require.PanicsWithValue(t, "ring: commit of -1 bytes with 3 free", func() { r.Commit(-1) })
	require.PanicsWithValue(t, "ring: release to 5 outside 6 to 11", func() { r.Release(5) })
	require.PanicsWithValue(t, "ring: release to 12 outside 6 to 11", func() { r.Release(12) })
	require.Panics(t, func() { r.Reserve(-1) })
	require.Panics(t, func() { r.Bytes(6, -1) })
	require.PanicsWithValue(t, "ring: bytes from 12 outside 6 to 11", func() { r.Bytes(12, 1) })
	require.PanicsWithValue(t, "ring: bytes from 5 outside 6 to 11", func() { r.Bytes(5, 1) })

	require.Equal(t, uint64(6), r.Tail(), "a panic changes nothing")
	require.Equal(t, uint64(11), r.Head())
}

func TestContiguousIsWhatOneWorkRequestCanCarry(t *testing.T) {
	for _, c := range []struct {
		pos           uint64
		n, size, want int
	}{
		{0, 8, 8, 8}, {0, 3, 8, 3}, {5, 3, 8, 3}, {5, 4, 8, 3}, {7, 8, 8, 1}, {8, 8, 8, 8}, {13, 1, 8, 1}, {6, 0, 8, 0},
		{math.MaxUint64, 2, 8, 1}, {math.MaxUint64 - 7, 9, 8, 8}, {1<<63 + 1, 1 << 30, 1 << 30, 1<<30 - 1}, {9, 1, 1, 1},
	} {
		require.Equal(t, c.want, Contiguous(c.pos, c.n, c.size), "%+v", c)
		require.Equal(t, int(c.pos%uint64(c.size)), Offset(c.pos, c.size), "%+v", c)
	}
}

// model is the ring as a queue that grows and shrinks.
type model struct {
	bytes []byte
	tail  uint64
}

// play does to a ring and to a model what ops say and compares them after each.
func play(t *testing.T, r *Ring, ops []byte) {
	m := model{tail: r.Tail()}
	var next byte
	for len(ops) >= 2 {
		op, arg := ops[0], int(ops[1])
		ops = ops[2:]
		switch op % 3 {
		case 0:
			n := min(arg, r.Free())
			for i := range n {
				m.bytes = append(m.bytes, next+byte(i))
			}
			put(r, arg, &next)
		case 1:
			n := min(arg, len(m.bytes))
			m.bytes, m.tail = m.bytes[n:], m.tail+uint64(n)
			r.Release(m.tail)
		case 2:
			from := min(arg, len(m.bytes))
			got := r.Bytes(m.tail+uint64(from), r.Size())
			require.Len(t, got, Contiguous(m.tail+uint64(from), len(m.bytes)-from, r.Size()))
			require.True(t, string(m.bytes[from:from+len(got)]) == string(got))
		}
		require.Equal(t, m.tail, r.Tail())
		require.Equal(t, m.tail+uint64(len(m.bytes)), r.Head())
		require.Equal(t, len(m.bytes), r.Len())
		require.Equal(t, r.Size()-len(m.bytes), r.Free())
		first, second := r.Held(r.Size())
		require.True(t, string(m.bytes) == string(first)+string(second))
	}
}

// starts are positions where arithmetic could go wrong. The last ones pass
// 2^64: no connection lives long enough, but nothing depends on that.
var starts = []uint64{0, 1, 1<<31 - 3, 1<<32 - 3, 1<<63 - 3, math.MaxUint64 - 1000, math.MaxUint64 - 2, math.MaxUint64}

func TestRingBehavesLikeAQueue(t *testing.T) {
	for _, size := range []int{1, 2, 8, 64, 256} {
		for _, start := range starts {
			seed := rand.Uint64()
			t.Logf("size %d, start %d, seed %d", size, start, seed)
			rnd := rand.New(rand.NewPCG(seed, 0))
			ops := make([]byte, 4000)
			for i := range ops {
				ops[i] = byte(rnd.Uint32())
			}
			play(t, at(start, size), ops)
		}
	}
}

func FuzzRing(f *testing.F) {
	f.Add(uint64(0), uint8(3), []byte{0, 5, 1, 3, 0, 6, 2, 2, 1, 8})
	f.Add(uint64(math.MaxUint64), uint8(0), []byte{0, 1, 0, 1, 1, 1, 0, 1})
	f.Add(uint64(math.MaxUint64-100), uint8(7), []byte{0, 255, 1, 200, 0, 255, 2, 0, 1, 255})
	f.Fuzz(func(t *testing.T, start uint64, log uint8, ops []byte) {
		play(t, at(start, 1<<(log%9)), ops)
	})
}
