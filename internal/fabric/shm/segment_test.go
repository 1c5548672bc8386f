//go:build linux

// Which memory an end takes from its peer.

package shm

import (
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/mapping"
)

// badMemory makes descriptors for n bytes of memory that must not be taken.
var badMemory = map[string]func(n int) (int, error){
	"unsealed":   func(n int) (int, error) { return sealed(0, n, true) },
	"may shrink": func(n int) (int, error) { return sealed(unix.F_SEAL_GROW, n, true) },
	"may grow":   func(n int) (int, error) { return sealed(unix.F_SEAL_SHRINK, n, true) },
	"no more seals": func(n int) (int, error) {
		return sealed(firstSeals|unix.F_SEAL_SEAL, n, true)
	},
	"not to be written": func(n int) (int, error) { return sealed(firstSeals|unix.F_SEAL_WRITE, n, true) },
	"nor in future": func(n int) (int, error) {
		return sealed(firstSeals|unix.F_SEAL_FUTURE_WRITE, n, true)
	},
	"too small": func(n int) (int, error) { return sealed(firstSeals, n-1, true) },
	"too large": func(n int) (int, error) { return sealed(firstSeals, n+4096, true) },
	"empty":     func(n int) (int, error) { return sealed(firstSeals, 0, false) },
	"vast":      func(n int) (int, error) { return sealed(firstSeals, math.MaxInt/2+1, false) },
	"not there": func(n int) (int, error) { return sealed(firstSeals, n, false) },
	"read-only": func(n int) (int, error) {
		fd, err := sealed(firstSeals, n, true)
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
	"huge pages": func(n int) (int, error) {
		fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
		if err != nil {
			return -1, err
		}
		return fd, addSeals(fd, firstSeals)
	},
	"device": func(int) (int, error) { return unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0) },
	"path":   func(int) (int, error) { return unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0) },
	"socket": func(int) (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) },
}

func sealed(seals, size int, filled bool) (int, error) {
	fd, err := createMemfd()
	if err != nil {
		return -1, err
	}
	err = unix.Ftruncate(fd, int64(size))
	if err == nil && filled {
		var mem []byte
		if mem, err = mapping.Map(fd, 0, size); err == nil {
			err = populate(mem)
			_ = mapping.Unmap(mem)
		}
	}
	if err == nil {
		err = addSeals(fd, seals)
	}
	return fd, err
}

func TestMemoryThatIsBadIsNotTaken(t *testing.T) {
	n := pages(5)
	for name, create := range badMemory {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			fd, err := create(n)
			if name == "huge pages" && err != nil {
				t.Skip(err)
			}
			require.NoError(t, err)
			_, err = adoptWhole(fd, n)
			assert.Error(t, err)
			t.Log(err)
			require.NoError(t, unix.Close(fd))
		})
	}
	leavesNothing(t)
	fd, err := sealed(firstSeals, n, true)
	require.NoError(t, err)
	mem, err := adoptWhole(fd, n)
	require.NoError(t, err, "good memory is")
	require.NoError(t, unix.Close(fd))
	require.NoError(t, mapping.Unmap(mem))
}

func punch(fd, at, n int) error {
	return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(at), int64(n))
}

func TestMemoryThatIsSettledCannotChange(t *testing.T) {
	leavesNothing(t)
	needsFutureWrite(t)
	n := pages(5)
	own, fd, err := createWhole(n)
	require.NoError(t, err)
	require.Error(t, checkSettled(fd, n), "nobody has set the last seals")
	peer, err := adoptWhole(fd, n)
	require.NoError(t, err)
	require.NoError(t, checkSettled(fd, n))

	assert.Error(t, unix.Ftruncate(fd, 0))
	assert.Error(t, unix.Ftruncate(fd, 1<<30))
	assert.Error(t, punch(fd, 0, n))
	assert.Error(t, addSeals(fd, unix.F_SEAL_WRITE))
	for _, mem := range [][]byte{own, peer} {
		assert.Error(t, unix.Madvise(mem, unix.MADV_REMOVE))
		mem[7]++
	}
	require.NoError(t, unix.Close(fd))
	require.Equal(t, byte(2), own[7])
	require.NoError(t, mapping.Unmap(own))
	require.NoError(t, mapping.Unmap(peer))
}

func needsFutureWrite(t *testing.T) {
	t.Helper()
	if lastSeals()&unix.F_SEAL_FUTURE_WRITE == 0 {
		t.Skip("this kernel lets holes be punched")
	}
}

// A page of memory that is missing would be made at the expense of the process that
// touches it first. The puncher makes it missing at any moment until the last
// seal forbids it.
func TestMemoryHolesThatAPeerPunchesAreNeverFilled(t *testing.T) {
	leavesNothing(t)
	needsFutureWrite(t)
	n, page := pages(64<<10), os.Getpagesize()
	// race runs take beside a puncher, and reports whether take has succeeded
	// although the page was lost: then it is there again, and empty.
	race := func(take func(fd int) ([]byte, error)) (filled bool) {
		theirs, fd, err := createWhole(n)
		require.NoError(t, err)
		defer mapping.Unmap(theirs)
		defer unix.Close(fd)
		last := theirs[n-page:]
		last[0] = 1
		var puncher sync.WaitGroup
		started := make(chan struct{})
		puncher.Go(func() {
			runtime.LockOSThread()
			close(started)
			for end := time.Now().Add(rand.N(200 * time.Microsecond)); time.Now().Before(end); {
			}
			_ = punch(fd, n-page, page)
		})
		<-started
		mem, err := take(fd)
		puncher.Wait()
		if err != nil {
			return false
		}
		defer mapping.Unmap(mem)
		return last[0] == 0
	}
	const rounds = 3000
	for victim, take := range map[string]func(fd int) ([]byte, error){
		"dialer": func(fd int) ([]byte, error) { return adoptWhole(fd, n) },
		// The dialer sets the seals, and the listener looks after them.
		"listener": func(fd int) ([]byte, error) {
			if err := addSeals(fd, lastSeals()); err != nil {
				return nil, err
			}
			if err := checkSettled(fd, n); err != nil {
				return nil, err
			}
			return mapping.Map(fd, 0, n)
		},
	} {
		won := 0
		for range rounds {
			if race(take) {
				won++
			}
		}
		assert.Zero(t, won, "holes filled by the %s in %d rounds", victim, rounds)
	}
}

func TestMemoryThatCannotBeMadeLeavesNothing(t *testing.T) {
	leavesNothing(t)
	for _, n := range []int{math.MaxInt &^ (os.Getpagesize() - 1), -1} {
		_, _, err := createWhole(n)
		require.Error(t, err)
		t.Log(err)
	}
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
			assert.LessOrEqual(t, s.buffersAt()+s.slots()*s.stride(), s.queues())
			assert.LessOrEqual(t, s.queues()+s.region, maxRegion+maxBuffers+8*2*maxRecvQueue)
		}
	}
}
