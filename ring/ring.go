// Package ring is a byte ring over memory that a device may be writing to: positions and
// slices, no I/O and no locks.
//
// A position counts the bytes of the whole stream. Positions never wrap in practice: at 400 Gb/s
// 64 bits last for eleven years. The byte at position p lies at p modulo the size of the ring, on
// both sides of a connection, so the position alone says where a byte goes.
//
// The package is for those who write another implementation of ringnet's protocol. There the
// peer writes to the ring by RDMA, and credits tell it how far (package credit). The package
// imports nothing of ringnet. For a ring within one process there are simpler packages.
//
// The package promises no API before v1.
package ring

import "fmt"

// Ring is a first-in first-out queue of bytes in a fixed buffer. It holds the bytes from Tail
// to Head; the rest of the buffer is free.
//
// Calls of its methods must not overlap: the caller needs a lock. It may copy bytes to and from
// the slices without that lock, because no method touches bytes.
type Ring struct {
	buf        []byte
	head, tail uint64
}

// New returns an empty ring over buf. The caller frees buf, after the ring's last use. New panics
// unless the length of buf is a power of two.
func New(buf []byte) *Ring {
	if n := len(buf); n == 0 || n&(n-1) != 0 {
		panic(fmt.Sprintf("ring: size %d is not a power of two", n))
	}
	return &Ring{buf: buf}
}

// Size returns the number of bytes that the ring can hold.
func (r *Ring) Size() int { return len(r.buf) }

// Head returns the position behind the last byte held.
func (r *Ring) Head() uint64 { return r.head }

// Tail returns the position of the first byte held.
func (r *Ring) Tail() uint64 { return r.tail }

// Len returns the number of bytes held.
func (r *Ring) Len() int { return int(r.head - r.tail) }

// Free returns the number of bytes that can be committed.
func (r *Ring) Free() int { return len(r.buf) - r.Len() }

// Reserve returns the next n free bytes, or all if fewer are free, in two parts. The second is
// empty unless the bytes cross the end of the buffer. Reserve changes nothing: Commit does.
func (r *Ring) Reserve(n int) (first, second []byte) {
	return r.slices(r.head, min(n, r.Free()))
}

// Commit adds the first n free bytes to those held. It panics if fewer are free.
func (r *Ring) Commit(n int) {
	if n < 0 || n > r.Free() {
		panic(fmt.Sprintf("ring: commit of %d bytes with %d free", n, r.Free()))
	}
	r.head += uint64(n)
}

// Held returns the first n bytes held, or all if fewer are held, in two parts as Reserve does.
func (r *Ring) Held(n int) (first, second []byte) {
	return r.slices(r.tail, min(n, r.Len()))
}

// Bytes returns the bytes held from position pos on, n at most, up to the end of the buffer: as
// many as one work request can carry. It panics unless pos is from Tail to Head.
func (r *Ring) Bytes(pos uint64, n int) []byte {
	r.check("bytes from", pos)
	first, _ := r.slices(pos, min(n, int(r.head-pos)))
	return first
}

// Release frees the bytes before position pos. It panics unless pos is from Tail to Head.
func (r *Ring) Release(pos uint64) {
	r.check("release to", pos)
	r.tail = pos
}

func (r *Ring) check(what string, pos uint64) {
	if pos-r.tail > uint64(r.Len()) {
		panic(fmt.Sprintf("ring: %s %d outside %d to %d", what, pos, r.Tail(), r.Head()))
	}
}

func (r *Ring) slices(pos uint64, n int) (first, second []byte) { return Slices(r.buf, pos, n) }

// Slices returns the n bytes from position pos on of a ring over buf, in two parts. The second is
// empty unless they cross the end of the buffer.
func Slices(buf []byte, pos uint64, n int) (first, second []byte) {
	at := Offset(pos, len(buf))
	if at+n <= len(buf) {
		return buf[at : at+n : at+n], nil
	}
	n -= len(buf) - at
	return buf[at:], buf[:n:n]
}

// Offset returns where position pos lies in a ring of the given size, in bytes from its start.
// size is a power of two.
func Offset(pos uint64, size int) int { return int(pos & uint64(size-1)) }

// Contiguous returns how many of the n bytes from position pos on lie before the end of a ring of
// the given size.
func Contiguous(pos uint64, n, size int) int { return min(n, size-Offset(pos, size)) }
