package ring

import (
	"fmt"
	"testing"
)

// BenchmarkPass takes messages through a ring: reserved, copied, committed,
// looked at and released.
func BenchmarkPass(b *testing.B) {
	for _, size := range []int{64, 512, 4 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			r := New(make([]byte, 256<<10))
			in, out := make([]byte, size), make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				first, second := r.Reserve(size)
				copy(second, in[copy(first, in):])
				r.Commit(size)
				pos := r.Tail()
				held := r.Bytes(pos, size)
				copy(out, held)
				copy(out[len(held):], r.Bytes(pos+uint64(len(held)), size-len(held)))
				r.Release(pos + uint64(size))
			}
		})
	}
}

// BenchmarkPositions is the above without the bytes: what the ring itself
// costs.
func BenchmarkPositions(b *testing.B) {
	r := at(1<<32-100, 256<<10)
	b.ReportAllocs()
	for b.Loop() {
		first, second := r.Reserve(64)
		r.Commit(len(first) + len(second))
		r.Release(r.Tail() + uint64(len(r.Bytes(r.Tail(), 64))))
	}
}
