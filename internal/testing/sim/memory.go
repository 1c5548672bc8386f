// Registered memory, and how its use after its end is detected.

package sim

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Poison fills memory that may no longer be read: all of it after Close, and the buffer
// of a receive after the next PostRecv.
const Poison = 0xDB

const pageSize = 4096

// Memory is a [fabric.Memory]. It is on the heap, page-aligned, and its Addr is invented,
// so that a test that uses it after Close finds poison, and is not killed.
type Memory struct {
	e      *Endpoint
	bytes  []byte
	addr   uint64
	rkey   uint32
	access fabric.Access
	freed  atomic.Bool
}

var _ fabric.Memory = (*Memory)(nil)

// Bytes implements [fabric.Memory].
func (m *Memory) Bytes() []byte { return m.bytes }

// Addr implements [fabric.Memory].
func (m *Memory) Addr() uint64 { return m.addr }

// RKey implements [fabric.Memory].
func (m *Memory) RKey() uint32 { return m.rkey }

// Register implements [fabric.Endpoint].
func (e *Endpoint) Register(n int, a fabric.Access) (fabric.Memory, error) {
	if f := e.n.faults.Load().Register; f != nil {
		if err := f(e, n); err != nil {
			return nil, err
		}
	}
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("Register")
	if e.qp == reset || n <= 0 {
		return nil, fmt.Errorf("sim: register %d bytes: %w", n, syscall.EINVAL)
	}
	n = (n + pageSize - 1) / pageSize * pageSize
	b := make([]byte, n+pageSize)
	skip := int(-address(b) % pageSize)
	m := &Memory{bytes: b[skip : skip+n : skip+n], access: a}

	e.n.mu.Lock()
	m.addr = e.n.nextAddr
	e.n.nextAddr += uint64(n) + pageSize
	e.n.mu.Unlock()

	e.enter(m)
	return m, nil
}

// Leave implements [fabric.Mover].
func (e *Endpoint) Leave(m fabric.Memory) error {
	own := m.(*Memory)
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("Leave")
	if e.qp != failed || own.e != e {
		return fmt.Errorf("sim: leave: %w", syscall.EINVAL)
	}
	e.memory = slices.DeleteFunc(e.memory, func(other *Memory) bool { return other == own })
	own.e = nil
	return nil
}

// Adopt implements [fabric.Mover].
func (e *Endpoint) Adopt(m fabric.Memory) error {
	own := m.(*Memory)
	if f := e.n.faults.Load().Register; f != nil {
		if err := f(e, len(own.bytes)); err != nil {
			return err
		}
	}
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.use("Adopt")
	if own.freed.Load() {
		panic("sim: memory that is freed is registered")
	}
	if e.qp == reset || own.e != nil {
		return fmt.Errorf("sim: adopt: %w", syscall.EINVAL)
	}
	e.enter(own)
	return nil
}

// enter gives memory a key by which the peer may know it. It takes n.mu.
func (e *Endpoint) enter(m *Memory) {
	e.n.mu.Lock()
	e.n.lastKey++
	m.rkey = e.n.lastKey << 8 // as on hardware, where the low byte is the owner's
	e.n.mu.Unlock()
	m.e = e
	e.memory = append(e.memory, m)
}

// Free implements [fabric.Memory].
func (m *Memory) Free() bool {
	if m.freed.Swap(true) {
		panic("sim: memory that is freed is freed again")
	}
	if m.e == nil { // it has been left
		poison(m.bytes)
		return true
	}
	m.e.c.mu.Lock()
	defer m.e.c.mu.Unlock()
	m.e.use("Free")
	if m.e.n.link.KeepMemory && m.access == fabric.RemoteWrite {
		m.freed.Store(false)
		return false
	}
	m.e.memory = slices.DeleteFunc(m.e.memory, func(other *Memory) bool { return other == m })
	poison(m.bytes)
	return true
}

// Keep implements [fabric.Memory]: the garbage collector keeps it.
func (m *Memory) Keep() {}

// Registered is how many bytes of memory the endpoint has registered.
func (e *Endpoint) Registered() int {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	total := 0
	for _, m := range e.memory {
		total += len(m.bytes)
	}
	return total
}

// holds reports whether data lies in m.
func (m *Memory) holds(data []byte) bool {
	first, start := address(data), address(m.bytes)
	return first >= start && first+uintptr(len(data)) <= start+uintptr(len(m.bytes))
}

// place copies what a peer writes to where the peer wants it, and reports whether the peer
// may write there.
func (e *Endpoint) place(data []byte, addr uint64, rkey uint32) bool {
	if len(data) == 0 {
		return true // no address or key is looked at
	}
	for _, m := range e.memory {
		if m.rkey != rkey {
			continue
		}
		size := uint64(len(m.bytes))
		at := addr - m.addr
		if m.access != fabric.RemoteWrite || at > size || uint64(len(data)) > size-at {
			return false
		}
		copy(m.bytes[at:], data)
		return true
	}
	return false
}

func poison(b []byte) {
	for i := range b {
		b[i] = Poison
	}
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Reach implements [fabric.Endpoint].
func (e *Endpoint) Reach(context.Context, uint64, uint32, int) error { return nil }

// Reaches implements [fabric.Endpoint].
func (e *Endpoint) Reaches(uint64, uint32, int) bool { return true }
