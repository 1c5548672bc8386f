//go:build linux && cgo

package rdmacore

// Registered memory: pages off the Go heap, which neither the garbage
// collector nor the kernel moves while a device writes to them.

// #include "shim.h"
import "C"

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/mapping"
	"github.com/ringnet/ringnet/internal/numa"
)

// Access says who may write to memory.
type Access uint32

// Besides the device at home, RemoteWrite lets the peer of the queue pair write to the memory.
const (
	LocalWrite  Access = C.RN_IBV_ACCESS_LOCAL_WRITE
	RemoteWrite Access = C.RN_IBV_ACCESS_LOCAL_WRITE | C.RN_IBV_ACCESS_REMOTE_WRITE
)

// Memory is registered memory. The queue pair that it is registered with owns it: it is unmapped by
// Free, or by the queue pair's Close.
type Memory struct {
	qp         *QueuePair // in whose protection domain it is, or nil
	bytes      []byte
	access     Access
	mr         *C.struct_rn_ibv_mr
	lkey, rkey uint32 // of mr, or of the last one
	kept       bool   // see Keep
}

// Bytes returns the memory itself.
func (m *Memory) Bytes() []byte { return m.bytes }

// Addr returns its address, by which the peer and work requests name it.
func (m *Memory) Addr() uint64 { return AddrOf(m.bytes) }

// LKey returns the key by which work requests of the queue pair name it.
func (m *Memory) LKey() uint32 { return m.lkey }

// RKey returns the key by which the peer names it.
func (m *Memory) RKey() uint32 { return m.rkey }

// AddrOf returns the address of bytes that are in registered memory, as work requests have it.
func AddrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Stride is the distance in bytes between slots of size bytes in memory: no two share a cache line.
func Stride(size int) int {
	const line = 64
	return (size + line - 1) &^ (line - 1)
}

// Register returns n bytes of zeroed memory, rounded up to whole pages. It may be called at any time
// between OpenDevice and Close, by any number of goroutines at once. An error wraps
// fabric.ErrLockedMemory if more may not be locked.
func (q *QueuePair) Register(n int, a Access) (*Memory, error) {
	page := os.Getpagesize()
	if n <= 0 || n > 1<<40 || q.pd == nil {
		return nil, fmt.Errorf("register %d bytes: %w", n, syscall.EINVAL)
	}
	n = (n + page - 1) &^ (page - 1)
	bytes, err := mapping.Map(-1, 0, n)
	if err != nil {
		return nil, err
	}
	numa.Prefer(bytes, q.device.node)
	// A child process must not share the pages: between fork and exec, the first of the
	// two processes to write to a page would get a copy of it, which the device does not
	// use.
	if err := unix.Madvise(bytes, unix.MADV_DONTFORK); err != nil {
		mapping.Unmap(bytes)
		return nil, os.NewSyscallError("madvise", err)
	}
	m := &Memory{bytes: bytes, access: a}
	if err := q.registerAt(m); err != nil {
		mapping.Unmap(bytes)
		return nil, err
	}
	return m, nil
}

// Registered returns how many bytes are registered with the queue pair.
func (q *QueuePair) Registered() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, m := range q.memory {
		n += len(m.bytes)
	}
	return n
}

// Leave gives up memory, which stays where it is, so that another queue pair adopts it. If the device
// is gone, it may return an error, and the memory is given up all the same.
func (q *QueuePair) Leave(m *Memory) error {
	if m.qp != q {
		return fmt.Errorf("leave %d bytes: %w", len(m.bytes), syscall.EINVAL)
	}
	q.forget(m)
	return m.deregister()
}

func (q *QueuePair) forget(m *Memory) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.memory = slices.DeleteFunc(q.memory, func(other *Memory) bool { return other == m })
}

// Adopt registers memory that another queue pair has left. Its bytes and its address are what they
// were, its keys are others.
func (q *QueuePair) Adopt(m *Memory) error {
	if q.pd == nil || m.qp != nil {
		return fmt.Errorf("adopt %d bytes: %w", len(m.bytes), syscall.EINVAL)
	}
	return q.registerAt(m)
}

// registerAt registers the memory with the queue pair's device.
func (q *QueuePair) registerAt(m *Memory) error {
	access := C.uint(m.access)
	if q.ID.manager.relaxed {
		access |= C.RN_IBV_ACCESS_RELAXED_ORDERING
	}
	n := len(m.bytes)
	if rc := C.rn_reg_mr(q.pd, unsafe.Pointer(unsafe.SliceData(m.bytes)), C.size_t(n), access, &m.mr); rc != 0 {
		return q.device.memoryError("ibv_reg_mr", rc, n)
	}
	m.qp, m.lkey, m.rkey = q, uint32(m.mr.lkey), uint32(m.mr.rkey)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.memory = append(q.memory, m)
	return nil
}

// deregister ends the registration, which may fail if the device is gone.
func (m *Memory) deregister() error {
	if m.qp == nil {
		return nil
	}
	device, mr := m.qp.device, m.mr
	m.qp, m.mr = nil, nil
	if rc := C.rn_dereg_mr(mr); rc != 0 {
		return device.error("ibv_dereg_mr", rc)
	}
	return nil
}

// Keep says that slices of the memory may outlive it. To touch them after Free or the queue pair's
// Close then raises no signal, but what they hold means nothing.
func (m *Memory) Keep() { m.kept = true }

// release deregisters the memory and unmaps it even if that fails, as it does once the
// device is gone. While a device may write to the pages, the kernel keeps them pinned
// and uses them for nothing else.
func (m *Memory) release() error {
	err := m.deregister()
	var unmapped error
	if m.kept {
		unmapped = mapping.Retire(m.bytes, m.bytes)
	} else {
		unmapped = mapping.Unmap(m.bytes)
	}
	if err == nil {
		err = unmapped
	}
	return err
}

// Free gives the memory back, which no work request under way uses any more. It always returns true.
// It ignores release's error, which means that the device is gone.
func (m *Memory) Free() bool {
	if m.qp != nil {
		m.qp.forget(m)
	}
	_ = m.release()
	return true
}
