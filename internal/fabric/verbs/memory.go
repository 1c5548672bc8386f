//go:build linux && cgo

package verbs

// Registered memory: pages off the Go heap, which neither the garbage
// collector nor the kernel moves while a device writes to them.

// #include "shim.h"
import "C"

import (
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/mapping"
)

// memory implements [fabric.Memory].
type memory struct {
	e      *endpoint // on whose device it is registered, or nil
	bytes  []byte
	access fabric.Access
	mr     *C.struct_rn_ibv_mr
	rkey   uint32 // of mr, or of the last one
	kept   bool   // see Keep
}

func (m *memory) Bytes() []byte { return m.bytes }
func (m *memory) Addr() uint64  { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes)))) }
func (m *memory) RKey() uint32  { return m.rkey }

func (e *endpoint) Register(n int, a fabric.Access) (fabric.Memory, error) {
	m, err := e.register(n, a)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Leave implements [fabric.Mover].
func (e *endpoint) Leave(m fabric.Memory) error {
	own := m.(*memory)
	if own.e != e {
		return fmt.Errorf("leave %d bytes: %w", len(own.bytes), syscall.EINVAL)
	}
	e.forget(own)
	return own.deregister()
}

func (e *endpoint) forget(m *memory) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.memory = slices.DeleteFunc(e.memory, func(other *memory) bool { return other == m })
}

// Adopt implements [fabric.Mover].
func (e *endpoint) Adopt(m fabric.Memory) error {
	own := m.(*memory)
	if e.pd == nil || own.e != nil {
		return fmt.Errorf("adopt %d bytes: %w", len(own.bytes), syscall.EINVAL)
	}
	return e.registerAt(own)
}

func (e *endpoint) register(n int, a fabric.Access) (*memory, error) {
	page := os.Getpagesize()
	if n <= 0 || n > 1<<40 || e.pd == nil {
		return nil, fmt.Errorf("register %d bytes: %w", n, syscall.EINVAL)
	}
	n = (n + page - 1) &^ (page - 1)
	bytes, err := mapping.Map(-1, 0, n)
	if err != nil {
		return nil, err
	}
	// A child process must not share the pages: between fork and exec, the first of the
	// two processes to write to a page would get a copy of it, which the device does not
	// use.
	if err := unix.Madvise(bytes, unix.MADV_DONTFORK); err != nil {
		mapping.Unmap(bytes)
		return nil, os.NewSyscallError("madvise", err)
	}
	m := &memory{bytes: bytes, access: a}
	if err := e.registerAt(m); err != nil {
		mapping.Unmap(bytes)
		return nil, err
	}
	return m, nil
}

// registerAt registers the memory with the endpoint's device.
func (e *endpoint) registerAt(m *memory) error {
	access := C.uint(C.RN_IBV_ACCESS_LOCAL_WRITE)
	if m.access >= fabric.RemoteWrite {
		access |= C.RN_IBV_ACCESS_REMOTE_WRITE
	}
	if e.manager.relaxed {
		access |= C.RN_IBV_ACCESS_RELAXED_ORDERING
	}
	n := len(m.bytes)
	if rc := C.rn_reg_mr(e.pd, unsafe.Pointer(unsafe.SliceData(m.bytes)), C.size_t(n), access, &m.mr); rc != 0 {
		return e.device.memoryError("ibv_reg_mr", rc, n)
	}
	m.e, m.rkey = e, uint32(m.mr.rkey)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.memory = append(e.memory, m)
	return nil
}

// deregister ends the registration, which may fail if the device is gone.
func (m *memory) deregister() error {
	if m.e == nil {
		return nil
	}
	device, mr := m.e.device, m.mr
	m.e, m.mr = nil, nil
	if rc := C.rn_dereg_mr(mr); rc != 0 {
		return device.deviceError("ibv_dereg_mr", rc)
	}
	return nil
}

// Keep implements [fabric.Memory].
func (m *memory) Keep() { m.kept = true }

// release deregisters the memory and unmaps it even if that fails, as it does once the
// device is gone. While a device may write to the pages, the kernel keeps them pinned
// and uses them for nothing else.
func (m *memory) release() error {
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

// Free implements [fabric.Memory]. It ignores release's error, which means that the
// device is gone.
func (m *memory) Free() bool {
	if m.e != nil {
		m.e.forget(m)
	}
	_ = m.release()
	return true
}

// Footprint implements [fabric.Endpoint].
func (e *endpoint) Footprint(o fabric.Options) fabric.Footprint {
	return fabric.Footprint{
		Receives: fabric.Pages(mailboxMemory(o)),
		Queues:   fabric.DeviceQueues(o.SendQueue, o.RecvQueue),
		Locked:   true,
	}
}

// Reach implements [fabric.Endpoint]. The peer's device checks each write.
func (e *endpoint) Reach(context.Context, uint64, uint32, int) error { return nil }

// Reaches implements [fabric.Endpoint].
func (e *endpoint) Reaches(uint64, uint32, int) bool { return true }
