//go:build linux

package shm

// Making the pages of memory before they are used.

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// makePages makes the pages of a part of a file in memory, at an offset, and maps them, so that
// a lack of memory is an error here and not a signal later.
func makePages(fd, at int, mem []byte) error {
	if canPopulate() {
		return populate(mem)
	}
	return fill(fd, at, mem)
}

// canPopulate reports whether the kernel has MADV_POPULATE_WRITE (Linux 5.14).
var canPopulate = sync.OnceValue(func() bool {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false // fill works everywhere
	}
	defer unix.Munmap(page)
	return !errors.Is(populate(page), unix.EINVAL)
})

// populate is makePages where the kernel can.
func populate(mem []byte) error {
	for {
		err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
		if err != unix.EINTR {
			return os.NewSyscallError("madvise MADV_POPULATE_WRITE", err)
		}
	}
}

// populateFully maps pages that exist already, if the kernel can.
func populateFully(mem []byte) error {
	if len(mem) == 0 || !canPopulate() {
		return nil
	}
	return populate(mem)
}

// fill is makePages where the kernel cannot populate. It touches the pages too, for until then
// SEEK_HOLE takes them for a hole.
func fill(fd, at int, mem []byte) error {
	if err := unix.Fallocate(fd, 0, int64(at), int64(len(mem))); err != nil {
		return os.NewSyscallError("fallocate", err)
	}
	for i := 0; i < len(mem); i += os.Getpagesize() {
		mem[i] = 0
	}
	return nil
}
