//go:build linux

package shm

// Memory: what an end shares, what it takes from its peer, and what it keeps to
// itself.

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

// segment is a mapped segment, one's own or the peer's. Everything in it may be
// changed by the peer at any time.
type segment struct {
	shape
	mem []byte

	waiting *atomic.Uint32
	posted  *atomic.Uint64
	slots   []atomic.Uint64
	lap     uint // log2 of len(slots)
	buffers []byte
	region  []byte
}

// view finds the parts of a mapped segment.
func view(s shape, mem []byte) *segment {
	return &segment{
		shape:   s,
		mem:     mem,
		waiting: (*atomic.Uint32)(unsafe.Pointer(&mem[waitingAt])),
		posted:  (*atomic.Uint64)(unsafe.Pointer(&mem[postedAt])),
		slots:   unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&mem[slotsAt])), s.slots()),
		lap:     uint(bits.TrailingZeros(uint(s.slots()))),
		buffers: mem[s.buffersAt():s.regionAt()],
		region:  mem[s.regionAt():s.size():s.size()],
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

func (s *segment) unmap() error { return os.NewSyscallError("munmap", unix.Munmap(s.mem)) }

// Seals make foreign memory safe to touch. Memory comes with the first: it
// stays as large as it is. Who takes it maps it and then sets the last: nobody
// can punch holes in it either, nor add a seal that would be in the way. So
// pages that are there stay there, and touching them never raises a signal,
// however short of memory the host may be.
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

// createSegment makes a segment and the descriptor to share it by.
func createSegment(s shape) (_ *segment, fd int, err error) {
	fd, err = createMemfd()
	if err != nil {
		return nil, -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err := unix.Ftruncate(fd, int64(s.size())); err != nil {
		return nil, -1, os.NewSyscallError("ftruncate", err)
	}
	seg, err := mapSegment(fd, s)
	if err != nil {
		return nil, -1, err
	}
	if err = seg.populate(fd); err == nil {
		err = addSeals(fd, firstSeals)
	}
	if err != nil {
		seg.unmap()
		return nil, -1, err
	}
	return seg, fd, nil
}

// createMemfd makes an empty file in memory that can be sealed. Kernels from
// 6.3 on want to be told that it holds no program (vm.memfd_noexec in
// Documentation/admin-guide/sysctl/vm.rst), earlier ones do not understand.
func createMemfd() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("ringnet", flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate("ringnet", flags)
	}
	if err == unix.ENOSYS {
		return -1, fmt.Errorf("shared memory: %w: this kernel has no memfd_create (Linux 3.17)", errors.ErrUnsupported)
	}
	return fd, os.NewSyscallError("memfd_create", err)
}

// adoptSegment maps the peer's segment, if it is what the peer says it is. It
// does not close fd.
func adoptSegment(fd int, s shape) (*segment, error) {
	// The seals come first: only files in memory have them, so no file system
	// of the peer's is asked anything, which it might never answer.
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
	if stat.Size != int64(s.size()) {
		return nil, fmt.Errorf("the peer's memory has %d bytes, want %d", stat.Size, s.size())
	}
	// All of it is there already, so nothing is allocated at a peer's behest.
	const block = 512
	if int64(stat.Blocks)*block < stat.Size {
		return nil, fmt.Errorf("only %d of the peer's %d bytes of memory exist", stat.Blocks*block, stat.Size)
	}
	seg, err := mapSegment(fd, s)
	if err != nil {
		return nil, err
	}
	if err = addSeals(fd, lastSeals()); err == nil {
		err = seg.settle(fd)
	}
	if err != nil {
		seg.unmap()
		return nil, err
	}
	return seg, nil
}

// settle checks that a segment that both ends have mapped can lose no page any
// more, and that it has lost none so far.
func (s *segment) settle(fd int) error {
	if err := checkSeals(fd, firstSeals|lastSeals()); err != nil {
		return err
	}
	return s.populate(fd)
}

func addSeals(fd, seals int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return os.NewSyscallError("fcntl F_ADD_SEALS", err)
}

func checkSeals(fd, want int) error {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("the peer shares something else than memory: %w", os.NewSyscallError("fcntl F_GET_SEALS", err))
	}
	if got&want != want {
		return fmt.Errorf("shared memory has seals %#x, want %#x", got, want)
	}
	return nil
}

func mapSegment(fd int, s shape) (*segment, error) {
	mem, err := unix.Mmap(fd, 0, s.size(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return view(s, mem), nil
}

// populate faults a segment in, so that memory that is not to be had is an
// error here and not a signal later.
func (s *segment) populate(fd int) error {
	for {
		switch err := unix.Madvise(s.mem, unix.MADV_POPULATE_WRITE); err {
		case unix.EINTR:
		case unix.EINVAL:
			// Before Linux 5.14 the file can be filled, which is what matters;
			// the pages are then mapped one by one as they are touched.
			return os.NewSyscallError("fallocate", unix.Fallocate(fd, 0, 0, int64(len(s.mem))))
		default:
			return os.NewSyscallError("madvise MADV_POPULATE_WRITE", err)
		}
	}
}

// memory implements [fabric.Memory]: private pages, or the region of the
// endpoint's own segment.
type memory struct {
	e      *endpoint
	bytes  []byte
	shared bool
}

var _ fabric.Memory = (*memory)(nil)

func (m *memory) Bytes() []byte { return m.bytes }

// Addr is an offset in the region: the peer has it mapped elsewhere.
func (m *memory) Addr() uint64 { return 0 }

func (m *memory) RKey() uint32 {
	if m.shared {
		return m.e.own.rkey
	}
	return 0
}

// holds reports whether data lies in m.
func (m *memory) holds(data []byte) bool {
	start, first := address(m.bytes), address(data)
	return first >= start && first+uintptr(len(data)) <= start+uintptr(len(m.bytes))
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Register implements [fabric.Endpoint]. Memory for remote writes can be
// registered once, and before the endpoint connects, since it is part of what
// is shared then.
func (e *endpoint) Register(n int, a fabric.Access) (fabric.Memory, error) {
	if e.limits.RecvQueue == 0 || n <= 0 || n > maxRegion {
		return nil, fmt.Errorf("shm: register %d bytes: %w", n, syscall.EINVAL)
	}
	m := &memory{e: e, shared: a == fabric.RemoteWrite}
	if m.shared {
		if e.own != nil {
			return nil, fmt.Errorf("shm: register memory for remote writes twice, or when connected: %w", syscall.EINVAL)
		}
		if err := e.share(pages(n)); err != nil {
			return nil, err
		}
		m.bytes = e.own.region
		return m, nil
	}
	var err error
	m.bytes, err = unix.Mmap(-1, 0, pages(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	e.memory = append(e.memory, m)
	return m, nil
}
