// Package mapping maps memory whose slices may outlive it: package net's users are
// used to slices that the garbage collector keeps, and to touch one whose memory is
// no longer mapped ends the process.
package mapping

import (
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// retired are the mappings that Retire has emptied, by their lengths, for Map to use
// again: so a process has no more of them than it has once had mappings at a time.
var retired = struct {
	mu    sync.Mutex
	byLen map[int][][]byte
}{byLen: make(map[int][][]byte)}

// Map maps n bytes that can be read and written, a multiple of the page size: those
// of a file, shared, or, if fd is -1, private ones. unix.Munmap unmaps them.
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
		return mem, nil
	}
	mem, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, flags)
	return mem, os.NewSyscallError("mmap", err)
}

// Retire gives back memory that Map has mapped, and leaves its addresses: slices of it
// can be read and written as before, and mean nothing, for another Map of as many
// bytes may put its own there. If it fails the memory stays as it is.
func Retire(mem []byte) error {
	if err := replace(mem, -1, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE); err != nil {
		return err
	}
	keep(mem)
	return nil
}

// replace maps something else where mem is. At no time is there nothing.
func replace(mem []byte, fd, flags int) error {
	_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_FIXED)
	return os.NewSyscallError("mmap", err)
}

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

func keep(mem []byte) {
	retired.mu.Lock()
	defer retired.mu.Unlock()
	retired.byLen[len(mem)] = append(retired.byLen[len(mem)], mem)
}
