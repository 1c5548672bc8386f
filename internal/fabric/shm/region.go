//go:build linux

package shm

// Memory for remote writes. An end maps of either region what rings need, and no more: the peer
// chooses how large its region is.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/mapping"
)

// ownRegion is what this end has mapped of its own region.
type ownRegion struct {
	at         int        // in the file
	pieces     []ownPiece // by offset; a later one may begin before the one before it ends
	memory     []*memory  // of it
	registered int        // bytes of the region, from its start
}

type ownPiece struct {
	at    int // in the region
	bytes []byte
	kept  []byte // bytes, if slices of it may be used after Close
}

// peerRegion is what this end has mapped of the peer's region, to write to.
type peerRegion struct {
	at      int                    // in the file
	window  atomic.Pointer[[]byte] // from the start of the region on; PostSend loads it while Reach may store a larger one
	windows [][]byte               // all there have been, for a PostSend may still copy to one
	reached int                    // bytes, from the start, that are known to exist

	// usable is how many bytes, from the start, exist and are in window.
	usable atomic.Int64
}

// memory implements [fabric.Memory]: private pages, or the region of the
// endpoint's own segment.
type memory struct {
	e      *endpoint
	bytes  []byte // of shared memory, once it is mapped
	shared bool
	at     int // in the region, if shared
	size   int
	piece  int // of ownRegion, once it is mapped
	kept   bool
}

var _ fabric.Memory = (*memory)(nil)

// Bytes implements [fabric.Memory]. Shared memory has none before the endpoint is
// connected.
func (m *memory) Bytes() []byte { return m.bytes }

// Addr implements [fabric.Memory]. It is an offset in the region, which the peer
// has mapped at another address.
func (m *memory) Addr() uint64 { return uint64(m.at) }

func (m *memory) RKey() uint32 {
	if m.shared {
		return m.e.shape.rkey
	}
	return 0
}

// Free implements [fabric.Memory]. Shared memory stays until both ends are closed:
// the seals that make it safe to touch forbid punching holes in it.
func (m *memory) Free() bool {
	if m.shared {
		return false
	}
	m.e.mu.Lock()
	m.e.memory = slices.DeleteFunc(m.e.memory, func(other *memory) bool { return other == m })
	m.e.mu.Unlock()
	_ = mapping.Unmap(m.bytes)
	m.bytes = nil
	return true
}

// Keep implements [fabric.Memory].
func (m *memory) Keep() { m.kept = true }

// holds reports whether data lies in mem.
func holds(mem, data []byte) bool {
	start, first := address(mem), address(data)
	return first >= start && first+uintptr(len(data)) <= start+uintptr(len(mem))
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Register implements [fabric.Endpoint]. Memory for remote writes is a part of
// the shared file. Its pages are made once the ends are connected, so a connection
// that is refused costs none.
func (e *endpoint) Register(n int, a fabric.Access) (fabric.Memory, error) {
	if e.limits.RecvQueue == 0 || n <= 0 { // how much is shared, registerShared bounds
		return nil, fmt.Errorf("register %d bytes: %w", n, syscall.EINVAL)
	}
	n = pages(n)
	if a == fabric.RemoteWrite {
		return e.registerShared(n)
	}
	mem, err := mapping.Map(-1, 0, n)
	if err != nil {
		return nil, err
	}
	m := &memory{e: e, bytes: mem}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.memory = append(e.memory, m)
	return m, nil
}

func (e *endpoint) registerShared(n int) (fabric.Memory, error) {
	r := &e.ownRegion
	if n > e.shape.region-r.registered {
		return nil, fmt.Errorf("register %d bytes for remote writes, with %d of %d left: %w", n, e.shape.region-r.registered, e.shape.region, syscall.ENOMEM)
	}
	m := &memory{e: e, shared: true, at: r.registered, size: n}
	if e.own != nil {
		if err := e.mapOwn(m); err != nil {
			return nil, fmt.Errorf("register %d bytes: %w", n, err)
		}
	}
	r.registered += n
	r.memory = append(r.memory, m)
	return m, nil
}

// mapOwn maps the memory m of the own region, and makes its pages. It maps as much again as
// there is, so that there are few pieces.
func (e *endpoint) mapOwn(m *memory) error {
	r := &e.ownRegion
	last := r.pieces[len(r.pieces)-1]
	if m.at+m.size > last.at+len(last.bytes) {
		at := max(m.at-os.Getpagesize(), 0) // which is mapped: Again maps from there
		size := min(max(m.at+m.size-at, m.at), e.shape.region-at)
		bytes, err := mapping.Again(last.bytes[at-last.at:], size)
		if err != nil {
			return err
		}
		last = ownPiece{at: at, bytes: bytes}
		r.pieces = append(r.pieces, last)
	}
	at := m.at - last.at
	bytes := last.bytes[at : at+m.size : at+m.size]
	if err := makePages(e.fd, r.at+m.at, bytes); err != nil {
		return err
	}
	m.bytes, m.piece = bytes, len(r.pieces)-1
	return nil
}

// Reach implements [fabric.Endpoint]. A peer registers its region from the start on, and
// populates what it registers before it tells the address. Reach makes no page, for which
// this end would pay, and waits for none: what has been swapped out is no hole.
func (e *endpoint) Reach(ctx context.Context, addr uint64, rkey uint32, n int) error {
	switch {
	case !e.inRegion(addr, rkey, n):
		return fmt.Errorf("%d bytes at %d are not the peer's memory: %w", n, addr, syscall.EFAULT)
	case e.Reaches(addr, rkey, n):
		return nil
	}
	return e.within(ctx, func() error { return e.reachTo(int(addr) + n) })
}

// Reaches implements [fabric.Endpoint].
func (e *endpoint) Reaches(addr uint64, rkey uint32, n int) bool {
	return e.inRegion(addr, rkey, n) && int64(addr)+int64(n) <= e.usable.Load()
}

// inRegion reports whether n bytes lie in the peer's region.
func (e *endpoint) inRegion(addr uint64, rkey uint32, n int) bool {
	size := uint64(e.peer.region)
	return rkey == e.peer.rkey && addr <= size && uint64(n) <= size-addr
}

// reachTo makes this end reach the peer's region up to end.
func (e *endpoint) reachTo(end int) error {
	r := &e.peerRegion
	if end > r.reached {
		if err := e.explore(); err != nil {
			return err
		}
	}
	if end > r.reached {
		return fmt.Errorf("the peer's memory ends at %d, before %d: %w", r.reached, end, syscall.EFAULT)
	}
	if err := e.widen(end); err != nil {
		return err
	}
	r.use()
	return nil
}

// use makes Reaches true of what exists and is mapped.
func (r *peerRegion) use() { r.usable.Store(int64(min(r.reached, len(*r.window.Load())))) }

// explore finds out how much of the peer's region exists, and closes the descriptor if neither end
// has a region. (mincore tells the owner of the file alone.)
func (e *endpoint) explore() error {
	r, size := &e.peerRegion, e.peer.region
	if size == 0 && e.shape.region == 0 {
		e.closeFile()
	}
	if r.reached == size {
		r.use()
		return nil
	}
	hole, err := unix.Seek(e.fd, int64(r.at+r.reached), unix.SEEK_HOLE)
	if err != nil {
		return os.NewSyscallError("lseek SEEK_HOLE", err)
	}
	before := r.reached
	r.reached = int(min(hole-int64(r.at), int64(size)))
	if err := r.touch(before); err != nil {
		return err
	}
	r.use()
	return nil
}

// widen maps as much of the peer's region as ends at end, and at least twice what there is: so
// a peer makes this end map little more than rings that exist.
func (e *endpoint) widen(end int) error {
	r := &e.peerRegion
	before := r.windows[len(r.windows)-1]
	if end <= len(before) {
		return nil
	}
	window, err := mapping.Again(before, min(max(end, 2*len(before)), e.peer.region))
	if err != nil {
		return err
	}
	r.open(window)
	// The pages of a window that no PostSend uses any more would count twice as this process's.
	if err := unix.Madvise(before, unix.MADV_DONTNEED); err != nil {
		return os.NewSyscallError("madvise", err)
	}
	return r.touch(0)
}

// open makes window the one that PostSend uses.
func (r *peerRegion) open(window []byte) {
	r.windows = append(r.windows, window)
	r.window.Store(&window)
}

// touch maps the pages that exist, from start on, so that there are no page faults later.
func (r *peerRegion) touch(start int) error {
	window := r.windows[len(r.windows)-1]
	if end := min(r.reached, len(window)); start < end {
		return populateFully(window[start:end])
	}
	return nil
}

// unmap unmaps all that is shared. It keeps the addresses of pieces that Keep was called for.
func (e *endpoint) unmap() error {
	if e.queues == nil {
		return nil
	}
	for _, m := range e.ownRegion.memory {
		if m.kept {
			e.pieces[m.piece].kept = e.pieces[m.piece].bytes
		}
		m.bytes = nil
	}
	err := unmapAll(append(e.windows, e.queues))
	for _, p := range e.pieces {
		if p.bytes != nil {
			err = errors.Join(err, mapping.Retire(p.bytes, p.kept))
		}
	}
	return err
}
