//go:build linux

package shm

// Memory: the queues of both ends, the file that they share, what an end takes from its
// peer, and what it keeps to itself. Memory for remote writes is in region.go.

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/mapping"
)

// segment is the memory in which one end, this one or the peer, receives. The
// peer can change all of it at any time.
type segment struct {
	shape

	waiting *atomic.Uint32
	posted  *atomic.Uint64
	slots   []atomic.Uint64
	lap     uint // log2 of len(slots)
	buffers []byte
}

// view finds the parts of a segment in memory for its queues.
func view(s shape, mem []byte) *segment {
	return &segment{
		shape:   s,
		waiting: (*atomic.Uint32)(unsafe.Pointer(&mem[waitingAt])),
		posted:  (*atomic.Uint64)(unsafe.Pointer(&mem[postedAt])),
		slots:   unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&mem[slotsAt])), s.slots()),
		lap:     uint(bits.TrailingZeros(uint(s.slots()))),
		buffers: mem[s.buffersAt():],
	}
}

// slot returns the descriptor of the message at a position.
func (s *segment) slot(pos uint64) *atomic.Uint64 {
	return &s.slots[pos&uint64(len(s.slots)-1)]
}

// buffer returns the receive buffer of the message at a position.
func (s *segment) buffer(pos uint64) []byte {
	at := int(pos&uint64(len(s.slots)-1)) * s.stride()
	return s.buffers[at : at+s.recvSize]
}

// Seals make memory that the peer has made safe to touch. The listener sets
// firstSeals when it makes the file, whose size then stays. The dialer maps the
// file and sets lastSeals: from then on no process can punch holes in it, or add
// a seal that would be in the way. So pages that exist stay, and touching them
// never raises a signal, however short of memory the host may be.
const firstSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// lastSeals depend on the kernel. Before Linux 5.1 holes can be punched:
// touching one gives a page of zeros, while there is memory.
var lastSeals = sync.OnceValue(func() int {
	fd, err := createMemfd()
	if err != nil {
		return unix.F_SEAL_SEAL
	}
	defer unix.Close(fd)
	const last = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, last); err != nil {
		return unix.F_SEAL_SEAL
	}
	return last
})

// The memory of a connection is one file, which the listener makes: its own
// segment first, the dialer's behind it. Only the dialer takes memory that its
// peer has made, and only once it trusts the listener.

// part is a part of that file, in whole pages.
type part struct{ at, size int }

// createMemory makes a file in memory of n bytes, and returns parts of it mapped, with the
// descriptor to share it by. It makes the bytes of the first part.
func createMemory(n int, parts [3]part) (mapped [3][]byte, fd int, err error) {
	fd, err = createMemfd()
	if err != nil {
		return mapped, -1, err
	}
	if err = os.NewSyscallError("ftruncate", unix.Ftruncate(fd, int64(n))); err == nil {
		mapped, err = mapParts(fd, parts)
	}
	if err == nil {
		err = makePages(fd, 0, mapped[0])
	}
	if err == nil {
		err = addSeals(fd, firstSeals)
	}
	if err != nil {
		unix.Close(fd)
		return mapped, -1, errors.Join(err, unmapAll(mapped[:]))
	}
	return mapped, fd, nil
}

// mapParts maps those parts that are not empty. It begins with the last, since the kernel places a
// mapping below the one before it, and makes one of two that follow each other in the file, too.
func mapParts(fd int, parts [3]part) (mapped [3][]byte, err error) {
	for i, p := range slices.Backward(parts[:]) {
		if p.size == 0 {
			continue
		}
		if mapped[i], err = mapping.Map(fd, int64(p.at), p.size); err != nil {
			return mapped, errors.Join(err, unmapAll(mapped[:]))
		}
	}
	return mapped, nil
}

func unmapAll(mapped [][]byte) (err error) {
	for _, mem := range mapped {
		if mem != nil {
			err = errors.Join(err, mapping.Unmap(mem))
		}
	}
	return err
}

// createMemfd makes an empty file in memory that can be sealed. Kernels from 6.3
// on want MFD_NOEXEC_SEAL for a file that holds no program (vm.memfd_noexec in
// Documentation/admin-guide/sysctl/vm.rst), earlier ones refuse it.
func createMemfd() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("ringnet", flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate("ringnet", flags)
	}
	return fd, os.NewSyscallError("memfd_create", err)
}

// adoptMemory checks that fd is a sealed file in memory of n bytes, of which those of the first
// part exist, and returns parts of it mapped. It does not close fd.
func adoptMemory(fd, n int, parts [3]part) (mapped [3][]byte, err error) {
	// The seals come first: only files in memory have them, so no call goes to a
	// file system of the peer's, which might never answer.
	if err := checkSeals(fd, firstSeals); err != nil {
		return mapped, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return mapped, os.NewSyscallError("fstatfs", err)
	}
	if int64(fs.Type) != unix.TMPFS_MAGIC {
		return mapped, fmt.Errorf("the peer's memory is of type %#x, want tmpfs (%#x)", fs.Type, unix.TMPFS_MAGIC)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return mapped, os.NewSyscallError("fstat", err)
	}
	if stat.Size != int64(n) {
		return mapped, fmt.Errorf("the peer's memory has %d bytes, want %d", stat.Size, n)
	}
	if mapped, err = mapParts(fd, parts); err != nil {
		return mapped, err
	}
	if err = addSeals(fd, lastSeals()); err == nil {
		err = checkSettled(fd, len(mapped[0]))
	}
	if err == nil {
		// All pages exist, so this makes none: it avoids page faults later.
		err = populateFully(mapped[0])
	}
	if err != nil {
		return mapped, errors.Join(err, unmapAll(mapped[:]))
	}
	return mapped, nil
}

// checkSettled checks that memory which both ends have mapped can lose no page
// any more, and then that it has lost none so far: the process that first touches
// a hole pays for the page that fills it.
func checkSettled(fd, first int) error {
	if err := checkSeals(fd, firstSeals|lastSeals()); err != nil {
		return err
	}
	hole, err := unix.Seek(fd, 0, unix.SEEK_HOLE)
	if err != nil {
		return os.NewSyscallError("lseek SEEK_HOLE", err)
	}
	if hole < int64(first) {
		return fmt.Errorf("shared memory has a hole at %d, among the first %d bytes", hole, first)
	}
	return nil
}

func addSeals(fd, seals int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return os.NewSyscallError("fcntl F_ADD_SEALS", err)
}

func checkSeals(fd, want int) error {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err == unix.EINVAL {
		return fmt.Errorf("the descriptor is not of shared memory: %w", os.NewSyscallError("fcntl F_GET_SEALS", err))
	}
	if err != nil {
		return os.NewSyscallError("fcntl F_GET_SEALS", err)
	}
	if got&want != want {
		return fmt.Errorf("shared memory has seals %#x, want %#x", got, want)
	}
	return nil
}
