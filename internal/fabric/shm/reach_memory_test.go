//go:build linux

// What an end may write to: memory of the peer's that exists.

package shm

import (
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

// sparse is options with more memory than open registers: what lies behind does not exist.
func sparse() fabric.Options {
	o := options
	o.RemoteMemory = 4 * ringSize
	return o
}

// A place that does not exist is refused at once, whichever end has told it: Reach is
// called with the lock of a link held.
func TestReachDoesNotWaitForMemoryThatIsMissing(t *testing.T) {
	leavesNothing(t)
	reachesWhatIsRegistered(t)
}

// On a kernel without MADV_POPULATE_WRITE, too, a link has the memory that was registered and no
// more: what it may register is some hundred times as much.
func TestReachOnAKernelThatDoesNotPopulate(t *testing.T) {
	inProcess(t, nil, func() {
		require.NoError(t, systemCall{number: unix.SYS_MADVISE, argument: 2, value: unix.MADV_POPULATE_WRITE, errno: unix.EINVAL}.refuse())
		reachesWhatIsRegistered(t)
	})
}

func reachesWhatIsRegistered(t *testing.T) {
	t.Helper()
	a, b := connected(t, sparse())
	for name, ends := range map[string][2]end{"dialer": {a, b}, "listener": {b, a}} {
		t.Run(name, func(t *testing.T) {
			one, other := ends[0], ends[1]
			at, key := other.mem.Addr(), other.mem.RKey()
			require.NoError(t, one.Reach(at, key, ringSize))
			synctest.Test(t, func(t *testing.T) {
				before := time.Now()
				require.ErrorIs(t, one.Reach(at+ringSize, key, 4096), syscall.EFAULT)
				require.ErrorIs(t, one.Reach(at+ringSize-4096, key, 8192), syscall.EFAULT)
				require.Zero(t, time.Since(before))
			})
			more, err := other.Register(ringSize, fabric.RemoteWrite)
			require.NoError(t, err)
			require.NoError(t, one.Reach(more.Addr(), key, ringSize), "memory that has come since")
			require.NoError(t, one.Reach(at, key, 2*ringSize))
			require.ErrorIs(t, one.Reach(at, key, 2*ringSize+1), syscall.EFAULT)
		})
	}
}

// A listener of another user's owns the file, and may forbid its dialers to look at it. They
// still pay for no page of it.
func TestReachFindsHolesInTheMemoryOfAnotherUser(t *testing.T) {
	leavesNothing(t)
	needsRoot(t)
	f := newFabric(t)
	l := listen(t, f, 1)
	accepted := make(chan end, 1)
	go func() {
		b, err := accept(l, sparse())
		assert.NoError(t, err)
		accepted <- b
	}()
	ep, err := f.Dial(ctx, netip.AddrPort{}, l.Addr())
	require.NoError(t, err)
	a, err := open(ep, sparse())
	require.NoError(t, err)
	defer a.Close()
	_, err = a.Connect(ctx, nil)
	require.NoError(t, err)
	forbidFiles(t)
	require.NoError(t, a.Confirm())
	b := <-accepted
	defer b.Close()
	asThreadOf(t, 1000, func() {
		at, key := b.mem.Addr(), b.mem.RKey()
		assert.NoError(t, a.Reach(at, key, ringSize))
		assert.ErrorIs(t, a.Reach(at+ringSize, key, ringSize), syscall.EFAULT)
	})
}

// forbidFiles takes all rights to the memory that this process shares from everybody.
func forbidFiles(t *testing.T) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	found := 0
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "/memfd:ringnet") {
			require.NoError(t, os.Chmod(fd, 0))
			found++
		}
	}
	require.NotZero(t, found)
}

// asThreadOf runs f in a thread of another user's, which is lost.
func asThreadOf(t *testing.T, uid uintptr, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		_, _, errno := unix.RawSyscall(callSetresuid, uid, uid, uid)
		if assert.Zero(t, errno) {
			f()
		}
	}()
	<-done
}
