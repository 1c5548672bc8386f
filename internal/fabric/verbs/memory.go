//go:build linux && cgo

package verbs

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

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/mapping"
)

// memory implements [fabric.Memory].
type memory struct {
	e     *endpoint
	bytes []byte
	mr    *C.struct_rn_ibv_mr
	kept  bool // see Keep
}

func (m *memory) Bytes() []byte { return m.bytes }
func (m *memory) Addr() uint64  { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes)))) }
func (m *memory) RKey() uint32  { return uint32(m.mr.rkey) }

func (e *endpoint) Register(n int, a fabric.Access) (fabric.Memory, error) {
	m, err := e.register(n, a)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (e *endpoint) register(n int, a fabric.Access) (*memory, error) {
	page := os.Getpagesize()
	if n <= 0 || n > 1<<40 || e.pd == nil {
		return nil, fmt.Errorf("register %d bytes: %w", n, syscall.EINVAL)
	}
	n = (n + page - 1) &^ (page - 1)
	bytes, err := mapping.Map(-1, n)
	if err != nil {
		return nil, err
	}
	// A child process gets none of it: should it be a copy of this one that has
	// not executed anything yet, then whichever of the two first wrote to a page
	// would get another than the device's.
	if err := unix.Madvise(bytes, unix.MADV_DONTFORK); err != nil {
		unix.Munmap(bytes)
		return nil, os.NewSyscallError("madvise", err)
	}
	access := C.uint(C.RN_IBV_ACCESS_LOCAL_WRITE)
	if a == fabric.RemoteWrite {
		access |= C.RN_IBV_ACCESS_REMOTE_WRITE
	}
	if e.manager.relaxed {
		access |= C.RN_IBV_ACCESS_RELAXED_ORDERING
	}
	m := &memory{e: e, bytes: bytes}
	if rc := C.rn_reg_mr(e.pd, unsafe.Pointer(unsafe.SliceData(bytes)), C.size_t(n), access, &m.mr); rc != 0 {
		unix.Munmap(bytes)
		return nil, memoryError("ibv_reg_mr", rc, n)
	}
	e.memory = append(e.memory, m)
	return m, nil
}

// Keep implements [fabric.Memory].
func (m *memory) Keep() { m.kept = true }

// release gives back the memory even where it stays registered, as it does once the
// device is gone: as long as a device may write to the pages the kernel has them
// pinned, and they are nobody else's.
func (m *memory) release() error {
	rc := C.rn_dereg_mr(m.mr)
	var err error
	if m.kept {
		err = mapping.Retire(m.bytes)
	} else {
		err = os.NewSyscallError("munmap", unix.Munmap(m.bytes))
	}
	if rc != 0 {
		return deviceError("ibv_dereg_mr", rc)
	}
	return err
}

// Free implements [fabric.Memory]. What could not be undone is gone with the
// device; there is nobody to tell.
func (m *memory) Free() bool {
	m.e.memory = slices.DeleteFunc(m.e.memory, func(other *memory) bool { return other == m })
	_ = m.release()
	return true
}

// Footprint implements [fabric.Endpoint].
func (e *endpoint) Footprint(o fabric.Options) fabric.Footprint {
	return fabric.Footprint{
		Receives: fabric.Pages(o.RecvQueue * recvStride(o.RecvSize)),
		Queues:   fabric.DeviceQueues(o.SendQueue, o.RecvQueue),
		Locked:   true,
	}
}

// Reach implements [fabric.Endpoint]. The device looks for itself.
func (e *endpoint) Reach(uint64, uint32, int) error { return nil }
