//go:build linux

// Which memory an end takes from its peer.

package shm

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// badMemory makes descriptors for a segment of a shape that must not be taken.
var badMemory = map[string]func(s shape) (int, error){
	"unsealed":   func(s shape) (int, error) { return sealed(s, 0, int64(s.size()), true) },
	"may shrink": func(s shape) (int, error) { return sealed(s, unix.F_SEAL_GROW, int64(s.size()), true) },
	"may grow":   func(s shape) (int, error) { return sealed(s, unix.F_SEAL_SHRINK, int64(s.size()), true) },
	"no more seals": func(s shape) (int, error) {
		return sealed(s, firstSeals|unix.F_SEAL_SEAL, int64(s.size()), true)
	},
	"not to be written": func(s shape) (int, error) { return sealed(s, firstSeals|unix.F_SEAL_WRITE, int64(s.size()), true) },
	"nor in future": func(s shape) (int, error) {
		return sealed(s, firstSeals|unix.F_SEAL_FUTURE_WRITE, int64(s.size()), true)
	},
	"too small": func(s shape) (int, error) { return sealed(s, firstSeals, int64(s.size()-1), true) },
	"too large": func(s shape) (int, error) { return sealed(s, firstSeals, int64(s.size()+4096), true) },
	"empty":     func(s shape) (int, error) { return sealed(s, firstSeals, 0, false) },
	"vast":      func(s shape) (int, error) { return sealed(s, firstSeals, 1<<50, false) },
	"not there": func(s shape) (int, error) { return sealed(s, firstSeals, int64(s.size()), false) },
	"read-only": func(s shape) (int, error) {
		fd, err := sealed(s, firstSeals, int64(s.size()), true)
		if err != nil {
			return fd, err
		}
		defer unix.Close(fd)
		f, err := os.Open("/proc/self/fd/" + strconv.Itoa(fd))
		if err != nil {
			return -1, err
		}
		defer f.Close()
		return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	},
	"huge pages": func(s shape) (int, error) {
		fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
		if err != nil {
			return -1, err
		}
		return fd, addSeals(fd, firstSeals)
	},
	"file on disk": func(s shape) (int, error) {
		f, err := os.CreateTemp("", "ringnet-shm")
		if err != nil {
			return -1, err
		}
		defer f.Close()
		if err := os.Remove(f.Name()); err != nil {
			return -1, err
		}
		if err := f.Truncate(int64(s.size())); err != nil {
			return -1, err
		}
		return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	},
	"directory": func(shape) (int, error) { return unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0) },
	"device":    func(shape) (int, error) { return unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0) },
	"path":      func(shape) (int, error) { return unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0) },
	"socket":    func(shape) (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) },
	"pipe": func(shape) (int, error) {
		var p [2]int
		err := unix.Pipe2(p[:], unix.O_CLOEXEC)
		unix.Close(p[1])
		return p[0], err
	},
	"eventfd": func(shape) (int, error) { return unix.Eventfd(0, unix.EFD_CLOEXEC) },
}

func sealed(s shape, seals int, size int64, filled bool) (int, error) {
	fd, err := createMemfd()
	if err != nil {
		return -1, err
	}
	err = unix.Ftruncate(fd, size)
	if err == nil && filled {
		err = unix.Fallocate(fd, 0, 0, size)
	}
	if err == nil {
		err = addSeals(fd, seals)
	}
	return fd, err
}

func TestBadMemoryIsNotTaken(t *testing.T) {
	s, err := newShape(uint64(pages(1)), 1, 16, 24)
	require.NoError(t, err)
	for name, make := range badMemory {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			fd, err := make(s)
			if name == "huge pages" && err != nil {
				t.Skip(err)
			}
			require.NoError(t, err)
			_, err = adoptSegment(fd, s)
			assert.Error(t, err)
			t.Log(err)
			require.NoError(t, unix.Close(fd))
		})
	}
	leavesNothing(t)
	fd, err := sealed(s, firstSeals, int64(s.size()), true)
	require.NoError(t, err)
	seg, err := adoptSegment(fd, s)
	require.NoError(t, err, "good memory is")
	require.NoError(t, unix.Close(fd))
	require.NoError(t, seg.unmap())
}

func TestSettledMemoryCannotChange(t *testing.T) {
	leavesNothing(t)
	if lastSeals()&unix.F_SEAL_FUTURE_WRITE == 0 {
		t.Skip("this kernel lets holes be punched")
	}
	s, err := newShape(uint64(pages(1)), 1, 16, 24)
	require.NoError(t, err)
	own, fd, err := createSegment(s)
	require.NoError(t, err)
	require.Error(t, own.settle(fd), "nobody has set the last seals")
	punch := func() error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(s.size()))
	}
	require.NoError(t, punch())
	_, err = adoptSegment(fd, s)
	require.ErrorContains(t, err, "0 of the peer's")
	require.NoError(t, own.populate(fd))
	peer, err := adoptSegment(fd, s)
	require.NoError(t, err)
	require.NoError(t, own.settle(fd))

	assert.Error(t, unix.Ftruncate(fd, 0))
	assert.Error(t, unix.Ftruncate(fd, 1<<30))
	assert.Error(t, punch())
	assert.Error(t, addSeals(fd, unix.F_SEAL_WRITE))
	for _, seg := range []*segment{own, peer} {
		assert.Error(t, unix.Madvise(seg.mem, unix.MADV_REMOVE))
		seg.posted.Add(1)
	}
	require.NoError(t, unix.Close(fd))
	require.Equal(t, uint64(2), own.posted.Load())
	require.NoError(t, own.unmap())
	require.NoError(t, peer.unmap())
}

// An address that no page begins at is what a kernel without
// MADV_POPULATE_WRITE answers alike.
func TestPopulateWithoutTheSystemCall(t *testing.T) {
	s, err := newShape(uint64(pages(1)), 1, 16, 24)
	require.NoError(t, err)
	fd, err := sealed(s, firstSeals, int64(s.size()), false)
	require.NoError(t, err)
	mem := make([]byte, s.size()+1)[1:]
	require.NoError(t, (&segment{shape: s, mem: mem}).populate(fd))
	seg, err := adoptSegment(fd, s)
	require.NoError(t, err, "all of it is there")
	require.NoError(t, unix.Close(fd))
	require.NoError(t, seg.unmap())
}

func TestShapes(t *testing.T) {
	page := uint64(os.Getpagesize())
	for _, test := range []struct {
		region              uint64
		recvQueue, recvSize uint32
		ok                  bool
	}{
		{0, 1, 0, true},
		{page, 267, 24, true},
		{maxRegion, maxRecvQueue, 24, true},
		{maxRegion + page, 1, 0, false},
		{1, 1, 0, false},
		{0, 0, 0, false},
		{0, maxRecvQueue + 1, 0, false},
		{0, maxRecvQueue, 1 << 31, false},
		{0, 1, maxBuffers, false},
		{1 << 63, 1, 1, false},
	} {
		s, err := newShape(test.region, 0, test.recvQueue, test.recvSize)
		assert.Equal(t, test.ok, err == nil, "%+v: %v", test, err)
		if err == nil {
			assert.GreaterOrEqual(t, s.slots(), s.recvQueue)
			assert.LessOrEqual(t, s.buffersAt()+s.slots()*s.stride(), s.regionAt())
			assert.LessOrEqual(t, s.size(), maxRegion+maxBuffers+8*2*maxRecvQueue)
		}
	}
}
