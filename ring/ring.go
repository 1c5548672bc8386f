// Package ring is a byte ring over memory that a device may be writing: positions and
// slices, no I/O and no locks.
//
// Positions are absolute: they count the bytes of the whole stream and never
// wrap in practice (at 400 Gb/s 64 bits last for eleven years). A byte at
// position p lies at p modulo the size of the ring, on both sides of a
// connection, so that position alone says where it goes.
//
// It is for those who write another implementation of ringnet's protocol, where the peer
// writes to the ring by RDMA and credits tell it how far (package credit). It imports
// nothing of ringnet. A program that wants a ring of its own, within one process, finds
// simpler ones.
//
// The package promises no API before v1.
package ring

import "fmt"

// Ring is a first-in first-out queue of bytes in a fixed buffer. Bytes between
// Tail and Head are held; the rest is free.
//
// It needs a lock of its caller's; the bytes between two positions may be copied
// without, for no method touches them.
type Ring struct {
	buf        []byte
	head, tail uint64
}

// New returns an empty ring over buf, which stays the caller's to free. It
// panics unless the length of buf is a power of two.
func New(buf []byte) *Ring { return NewAt(buf, 0) }

// NewAt is New for a ring whose first byte is that at position pos.
func NewAt(buf []byte, pos uint64) *Ring {
	if n := len(buf); n == 0 || n&(n-1) != 0 {
		panic(fmt.Sprintf("ring: size %d is not a power of two", n))
	}
	return &Ring{buf, pos, pos}
}

// Size is the number of bytes that the ring can hold.
func (r *Ring) Size() int { return len(r.buf) }

// Head is the position behind the last byte held.
func (r *Ring) Head() uint64 { return r.head }

// Tail is the position of the first byte held.
func (r *Ring) Tail() uint64 { return r.tail }

// Len is the number of bytes held.
func (r *Ring) Len() int { return int(r.head - r.tail) }

// Free is the number of bytes that can be committed.
func (r *Ring) Free() int { return len(r.buf) - r.Len() }

// Reserve returns the next n free bytes, or all if fewer are free, in two
// parts; the second is empty unless they cross the end of the buffer.
func (r *Ring) Reserve(n int) (first, second []byte) {
	return r.slices(r.head, min(n, r.Free()))
}

// Commit adds to the ring the first n bytes that are free. It panics if fewer
// are.
func (r *Ring) Commit(n int) {
	if n < 0 || n > r.Free() {
		panic(fmt.Sprintf("ring: commit of %d bytes with %d free", n, r.Free()))
	}
	r.head += uint64(n)
}

// Held returns the first n bytes held, or all if fewer are held, in two parts
// as Reserve does.
func (r *Ring) Held(n int) (first, second []byte) {
	return r.slices(r.tail, min(n, r.Len()))
}

// Bytes returns the bytes held from position pos on, n at most, up to the end
// of the buffer: what one work request can carry. It panics if pos is not
// between Tail and Head.
func (r *Ring) Bytes(pos uint64, n int) []byte {
	r.check("bytes from", pos)
	first, _ := r.slices(pos, min(n, int(r.head-pos)))
	return first
}

// Release gives up the bytes before position pos. It panics if pos is not
// between Tail and Head.
func (r *Ring) Release(pos uint64) {
	r.check("release to", pos)
	r.tail = pos
}

func (r *Ring) check(what string, pos uint64) {
	if pos-r.tail > uint64(r.Len()) {
		panic(fmt.Sprintf("ring: %s %d outside %d to %d", what, pos, r.Tail(), r.Head()))
	}
}

func (r *Ring) slices(pos uint64, n int) (first, second []byte) {
	at := Offset(pos, len(r.buf))
	if at+n <= len(r.buf) {
		return r.buf[at : at+n : at+n], nil
	}
	n -= len(r.buf) - at
	return r.buf[at:], r.buf[:n:n]
}

// Offset is where position pos lies in a ring of the given size, which is a
// power of two.
func Offset(pos uint64, size int) int { return int(pos & uint64(size-1)) }

// Contiguous is how many of the n bytes from position pos on lie before the
// end of a ring of the given size.
func Contiguous(pos uint64, n, size int) int { return min(n, size-Offset(pos, size)) }
