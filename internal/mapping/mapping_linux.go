// Package mapping maps memory whose slices may outlive it. Users of package net expect
// the garbage collector to keep a slice's memory, and a process that touches a slice
// whose memory is no longer mapped is killed. It counts the addresses that it maps, and leaves
// the rest of the process some where there are few.
package mapping

import (
	"errors"
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/budget"
)

// addresses are those that this package has mapped.
var addresses = struct {
	mu    sync.Mutex     // guards what follows
	bytes int            // all of them
	spare [][]byte       // what Retire has emptied, by address; none ends where another begins
	bound map[*byte]bool // the first of those in use that were spare once
}{bound: make(map[*byte]bool)}

// Map maps n bytes, a multiple of the page size, that can be read and written: those from
// offset at of the file fd, shared, or, if fd is -1, private ones, which are zero. The functions
// of this package may be called concurrently.
func Map(fd int, at int64, n int) ([]byte, error) {
	flags := unix.MAP_SHARED
	if fd < 0 {
		flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	}
	mem, err := place(n, func(spare []byte) ([]byte, error) {
		if spare != nil {
			return spare, mapAt(spare, fd, at, flags|unix.MAP_FIXED)
		}
		p, err := unix.MmapPtr(fd, at, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			return nil, os.NewSyscallError("mmap", err)
		}
		return unsafe.Slice((*byte)(p), n), nil
	})
	if err == nil && fd < 0 && n >= hugePage {
		preferHugePages(mem)
	}
	return mem, err
}

// hugePage is the size of a huge page where pages have 4 KiB.
const hugePage = 2 << 20

// preferHugePages asks for huge pages where private memory has room for one: they are made,
// pinned and registered faster than 512 others. Linux 6.7 and later have placed it so that
// they fit. Where there are none, the memory is as good as without.
func preferHugePages(mem []byte) { _ = unix.Madvise(mem, unix.MADV_HUGEPAGE) }

// Again maps n bytes of a file once more, from where mem begins, which Map or Again has
// mapped. It also maps what mem does not reach, and where a seal forbids new mappings
// (F_SEAL_FUTURE_WRITE): mremap(2) does so if the old size is 0.
func Again(mem []byte, n int) ([]byte, error) {
	return place(n, func(spare []byte) ([]byte, error) {
		flags := unix.MREMAP_MAYMOVE
		if spare != nil {
			flags |= unix.MREMAP_FIXED
		}
		p, err := unix.MremapPtr(start(mem), 0, start(spare), uintptr(n), flags)
		if err == nil {
			return unsafe.Slice((*byte)(p), n), nil
		}
		if spare != nil {
			// What was there may be unmapped by now, and is mapped again, unless another
			// thread has mapped something there meanwhile.
			_ = mapAt(spare, -1, 0, empty|unix.MAP_FIXED_NOREPLACE)
		}
		return nil, os.NewSyscallError("mremap", err)
	})
}

// place has do map n bytes: at spare addresses, or at others if it gets nil.
func place(n int, do func(spare []byte) ([]byte, error)) ([]byte, error) {
	if n <= 0 {
		return nil, os.NewSyscallError("mmap", unix.EINVAL)
	}
	spare, err := take(n)
	if err != nil {
		return nil, err
	}
	mem, err := do(spare)
	if err == nil {
		return mem, nil
	}
	addresses.mu.Lock()
	defer addresses.mu.Unlock()
	if spare != nil {
		keep(spare)
	} else {
		addresses.bytes -= n
	}
	return nil, err
}

// Unmap gives memory, all that a call of Map or Again has returned, back to the system. No slice
// of it may be used any more.
func Unmap(mem []byte) error { return Retire(mem, nil) }

// Retire is Unmap for memory of which the part kept may still be used: the program can read and
// write slices of that, but what it reads there means nothing, for later calls may use these
// addresses. So there are never many more of them than have been in use at a time. If Retire
// fails, some of the memory stays as it is.
func Retire(mem, kept []byte) error {
	addresses.mu.Lock()
	bound := addresses.bound[unsafe.SliceData(mem)]
	addresses.mu.Unlock()
	if bound {
		kept = mem // slices of what was here before may still be used
	}
	if len(kept) == 0 {
		return free(mem)
	}
	if err := mapAt(kept, -1, 0, empty|unix.MAP_FIXED); err != nil {
		return err
	}
	addresses.mu.Lock()
	keep(kept)
	addresses.mu.Unlock()
	at := int(uintptr(start(kept)) - uintptr(start(mem)))
	return errors.Join(free(mem[:at]), free(mem[at+len(kept):]))
}

// free unmaps memory.
func free(mem []byte) error {
	if len(mem) == 0 {
		return nil
	}
	if err := unix.MunmapPtr(start(mem), uintptr(len(mem))); err != nil {
		return os.NewSyscallError("munmap", err)
	}
	addresses.mu.Lock()
	defer addresses.mu.Unlock()
	addresses.bytes -= len(mem)
	return nil
}

// empty is how addresses are mapped that hold nothing.
const empty = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE

// mapAt maps at the addresses of mem.
func mapAt(mem []byte, fd int, at int64, flags int) error {
	_, err := unix.MmapPtr(fd, at, start(mem), uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE, flags)
	return os.NewSyscallError("mmap", err)
}

func start(mem []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(mem)) }

// take takes n spare addresses, or returns nil if there are not as many in one piece, and
// counts n more.
func take(n int) ([]byte, error) {
	now := budget.AddressesNow()
	addresses.mu.Lock()
	defer addresses.mu.Unlock()
	best := -1
	for i, mem := range addresses.spare {
		if len(mem) >= n && (best < 0 || len(mem) < len(addresses.spare[best])) {
			best = i
		}
	}
	if best < 0 {
		if err := now.Check(n, addresses.bytes); err != nil {
			return nil, err
		}
		addresses.bytes += n
		return nil, nil
	}
	mem := addresses.spare[best]
	if len(mem) == n {
		addresses.spare = slices.Delete(addresses.spare, best, best+1)
	} else {
		addresses.spare[best] = mem[n:]
	}
	addresses.bound[unsafe.SliceData(mem)] = true
	return mem[:n:n], nil
}

// keep makes addresses spare. The caller holds mu.
func keep(mem []byte) {
	delete(addresses.bound, unsafe.SliceData(mem))
	i, _ := slices.BinarySearchFunc(addresses.spare, mem, func(a, b []byte) int {
		if uintptr(start(a)) < uintptr(start(b)) {
			return -1
		}
		return 1
	})
	addresses.spare = slices.Insert(addresses.spare, i, mem)
	join(i)
	if i > 0 {
		join(i - 1)
	}
}

// join makes one of the spare addresses at i and those after them, if nothing is between. The
// caller holds mu.
func join(i int) {
	all := addresses.spare
	if i+1 < len(all) && uintptr(start(all[i]))+uintptr(len(all[i])) == uintptr(start(all[i+1])) {
		all[i] = unsafe.Slice(unsafe.SliceData(all[i]), len(all[i])+len(all[i+1]))
		addresses.spare = slices.Delete(all, i+1, i+2)
	}
}
