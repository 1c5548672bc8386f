//go:build linux

package shm

// Memory: what an end shares, what it takes from its peer, and what it keeps to
// itself.

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
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
	region  []byte

	regionAt int // of region, in the file
}

// view finds the parts of a segment in memory for its queues. regionAt is where its region
// is in the file.
func view(s shape, mem, region []byte, regionAt int) *segment {
	return &segment{
		shape:   s,
		waiting: (*atomic.Uint32)(unsafe.Pointer(&mem[waitingAt])),
		posted:  (*atomic.Uint64)(unsafe.Pointer(&mem[postedAt])),
		slots:   unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&mem[slotsAt])), s.slots()),
		lap:     uint(bits.TrailingZeros(uint(s.slots()))),
		buffers: mem[s.buffersAt():],
		region:  region,

		regionAt: regionAt,
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

// createMemory makes a file in memory of n bytes, populates as many of them as
// first, and returns it mapped, with the descriptor to share it by.
func createMemory(first, n int) (mem []byte, fd int, err error) {
	fd, err = createMemfd()
	if err != nil {
		return nil, -1, err
	}
	if mem, err = fillMemfd(fd, first, n); err != nil {
		unix.Close(fd)
		return nil, -1, err
	}
	return mem, fd, nil
}

// fillMemfd gives an empty file in memory n bytes, maps it, and populates as many
// of them as first.
func fillMemfd(fd, first, n int) ([]byte, error) {
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		return nil, os.NewSyscallError("ftruncate", err)
	}
	mem, err := mapping.Map(fd, n)
	if err != nil {
		return nil, err
	}
	if err = populate(mem[:first]); errors.Is(err, syscall.EINVAL) {
		err = fill(mem, fd) // Linux before 5.14 cannot populate the rest later
	}
	if err == nil {
		err = addSeals(fd, firstSeals)
	}
	if err != nil {
		unix.Munmap(mem)
		return nil, err
	}
	return mem, nil
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
	if err == unix.ENOSYS {
		return -1, fmt.Errorf("shared memory: %w: this kernel has no memfd_create", errors.ErrUnsupported)
	}
	return fd, os.NewSyscallError("memfd_create", err)
}

// adoptMemory checks that fd is a sealed file in memory of n bytes, of which as
// many as first exist, and maps it. It does not close fd.
func adoptMemory(fd, first, n int) ([]byte, error) {
	// The seals come first: only files in memory have them, so no call goes to a
	// file system of the peer's, which might never answer.
	if err := checkSeals(fd, firstSeals); err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, os.NewSyscallError("fstatfs", err)
	}
	if int64(fs.Type) != unix.TMPFS_MAGIC {
		return nil, fmt.Errorf("the peer's memory is of type %#x, want tmpfs (%#x)", fs.Type, unix.TMPFS_MAGIC)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if stat.Size != int64(n) {
		return nil, fmt.Errorf("the peer's memory has %d bytes, want %d", stat.Size, n)
	}
	mem, err := mapping.Map(fd, n)
	if err != nil {
		return nil, err
	}
	if err = addSeals(fd, lastSeals()); err == nil {
		err = checkSettled(fd, first)
	}
	if err == nil {
		// All pages exist, so this makes none: it avoids page faults later.
		err = populateFully(mem[:first])
	}
	if err != nil {
		unix.Munmap(mem)
		return nil, err
	}
	return mem, nil
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
	if err != nil {
		return fmt.Errorf("the peer's descriptor is not of shared memory: %w", os.NewSyscallError("fcntl F_GET_SEALS", err))
	}
	if got&want != want {
		return fmt.Errorf("shared memory has seals %#x, want %#x", got, want)
	}
	return nil
}

// populate makes the pages of memory and maps them, so that a lack of memory is
// an error here and not a signal later.
func populate(mem []byte) error {
	for {
		err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
		if err != unix.EINTR {
			return os.NewSyscallError("madvise MADV_POPULATE_WRITE", err)
		}
	}
}

// populateFully is populate for memory that exists already where the kernel has no
// MADV_POPULATE_WRITE (see fill): there it does nothing.
func populateFully(mem []byte) error {
	err := populate(mem)
	if errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}

// fill makes all pages of a file where the kernel has no MADV_POPULATE_WRITE. It
// touches them too, for until then SEEK_HOLE takes them for a hole.
func fill(mem []byte, fd int) error {
	if err := unix.Fallocate(fd, 0, 0, int64(len(mem))); err != nil {
		return os.NewSyscallError("fallocate", err)
	}
	for i := 0; i < len(mem); i += os.Getpagesize() {
		mem[i] = 0
	}
	return nil
}

// memory implements [fabric.Memory]: private pages, or the region of the
// endpoint's own segment.
type memory struct {
	e      *endpoint
	bytes  []byte
	shared bool
	at     int // in the region, if shared
	size   int
}

var _ fabric.Memory = (*memory)(nil)

// Bytes implements [fabric.Memory]. Shared memory has none before the endpoint is
// connected.
func (m *memory) Bytes() []byte {
	if m.shared && m.e.own != nil {
		return m.e.own.region[m.at : m.at+m.size : m.at+m.size]
	}
	return m.bytes
}

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
	unix.Munmap(m.bytes)
	m.bytes = nil
	return true
}

// Keep implements [fabric.Memory]. All shared memory of a connection is one
// mapping, which is kept as a whole.
func (m *memory) Keep() { m.e.kept = m.e.kept || m.shared }

// holds reports whether data lies in m.
func (m *memory) holds(data []byte) bool {
	mem := m.Bytes()
	start, first := address(mem), address(data)
	return first >= start && first+uintptr(len(data)) <= start+uintptr(len(mem))
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Register implements [fabric.Endpoint]. Memory for remote writes is a part of
// the shared file. Its pages are made once the ends are connected, so a connection
// that is refused costs none.
func (e *endpoint) Register(n int, a fabric.Access) (fabric.Memory, error) {
	if e.limits.RecvQueue == 0 || n <= 0 || n > maxRegion {
		return nil, fmt.Errorf("register %d bytes: %w", n, syscall.EINVAL)
	}
	n = pages(n)
	if a == fabric.RemoteWrite {
		return e.registerShared(n)
	}
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	m := &memory{e: e, bytes: mem}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.memory = append(e.memory, m)
	return m, nil
}

func (e *endpoint) registerShared(n int) (fabric.Memory, error) {
	if n > e.shape.region-e.registered {
		return nil, fmt.Errorf("register %d bytes for remote writes, with %d of %d left: %w", n, e.shape.region-e.registered, e.shape.region, syscall.ENOMEM)
	}
	m := &memory{e: e, shared: true, at: e.registered, size: n}
	if e.own != nil {
		if err := populateFully(m.Bytes()); err != nil {
			return nil, fmt.Errorf("register %d bytes: %w", n, err)
		}
	}
	e.registered += n
	return m, nil
}

// Reach implements [fabric.Endpoint]. A peer registers its region from the start on, and
// populates what it registers before it tells the address. Reach makes no page, for which
// this end would pay, and waits for none: what has been swapped out is no hole.
func (e *endpoint) Reach(addr uint64, rkey uint32, n int) error {
	size := uint64(len(e.peer.region))
	if rkey != e.peer.rkey || addr > size || uint64(n) > size-addr {
		return fmt.Errorf("%d bytes at %d are not the peer's memory: %w", n, addr, syscall.EFAULT)
	}
	end := int(addr) + n
	if end <= e.reached {
		return nil
	}
	if err := e.explore(); err != nil {
		return err
	}
	if end > e.reached {
		return fmt.Errorf("%d bytes at %d do not exist: %w", n, addr, syscall.EFAULT)
	}
	return nil
}

// explore finds out how much of the peer's region exists, and closes the descriptor, which
// serves nothing else, once that is all of it. (mincore tells the owner of the file alone.)
func (e *endpoint) explore() error {
	size := len(e.peer.region)
	if e.reached < size {
		hole, err := unix.Seek(e.fd, int64(e.peer.regionAt+e.reached), unix.SEEK_HOLE)
		if err != nil {
			return os.NewSyscallError("lseek SEEK_HOLE", err)
		}
		there := int(min(hole-int64(e.peer.regionAt), int64(size)))
		// This avoids page faults later.
		if err := populateFully(e.peer.region[e.reached:there]); err != nil {
			return err
		}
		e.reached = there
	}
	if e.reached == size {
		e.closeFile()
	}
	return nil
}
