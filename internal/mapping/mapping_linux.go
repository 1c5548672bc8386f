// Package mapping maps memory whose slices may outlive it. Users of package net expect
// the garbage collector to keep a slice's memory, and a process that touches a slice
// whose memory is no longer mapped is killed.
package mapping

import (
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// retired are the mappings that Retire has emptied, by their lengths. Map uses them again,
// so that their number is limited: together with those in use there are never more than
// have been in use at a time.
var retired = struct {
	mu    sync.Mutex // guards byLen
	byLen map[int][][]byte
}{byLen: make(map[int][][]byte)}

// Map maps n bytes, a multiple of the page size, that can be read and written: those of
// the file fd, shared, or, if fd is -1, private ones, which are zero. unix.Munmap unmaps
// them. Map and Retire may be called concurrently.
func Map(fd, n int) ([]byte, error) {
	flags := unix.MAP_SHARED
	if fd < 0 {
		flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	}
	if mem := reuse(n); mem != nil {
		if err := replace(mem, fd, flags); err != nil {
			keep(mem)
			return nil, err
		}
		preferHugePages(mem, fd)
		return mem, nil
	}
	mem, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	preferHugePages(mem, fd)
	return mem, nil
}

// hugePage is the size of a huge page where pages have 4 KiB.
const hugePage = 2 << 20

// preferHugePages asks for huge pages where private memory has room for one: they are made,
// pinned and registered faster than 512 others. Linux 6.7 and later have placed it so that
// they fit. Where there are none, the memory is as good as without.
func preferHugePages(mem []byte, fd int) {
	if fd < 0 && len(mem) >= hugePage {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	}
}

// Retire gives memory that Map has mapped back to the system, and keeps its addresses:
// the program can still read and write slices of it, but what it reads there means
// nothing, for a later Map of as many bytes may use these addresses. If Retire fails, the
// memory stays as it is.
func Retire(mem []byte) error {
	if err := replace(mem, -1, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE); err != nil {
		return err
	}
	keep(mem)
	return nil
}

// replace maps fd, or zero bytes, at the addresses of mem, which stay mapped meanwhile.
func replace(mem []byte, fd, flags int) error {
	_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_FIXED)
	return os.NewSyscallError("mmap", err)
}

// reuse takes a retired mapping of n bytes, or nil if there is none.
func reuse(n int) []byte {
	retired.mu.Lock()
	defer retired.mu.Unlock()
	all := retired.byLen[n]
	if len(all) == 0 {
		return nil
	}
	mem := all[len(all)-1]
	retired.byLen[n] = all[:len(all)-1]
	return mem
}

// keep adds a mapping to those that are retired.
func keep(mem []byte) {
	retired.mu.Lock()
	defer retired.mu.Unlock()
	retired.byLen[len(mem)] = append(retired.byLen[len(mem)], mem)
}
