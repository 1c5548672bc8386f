//go:build linux

// How many addresses a connection takes, for memory that a peer names and for memory whose
// slices outlive it.

package shm

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

// mappedNow is how many bytes this process has mapped.
func mappedNow(t *testing.T) uint64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	var n uint64
	_, err = fmt.Sscan(string(text), &n)
	require.NoError(t, err)
	return n * uint64(os.Getpagesize())
}

// with returns options with so much memory for remote writes.
func with(remote int) fabric.Options {
	o := options
	o.RemoteMemory = remote
	return o
}

// While a connection lives, only what rings need is mapped of what its peer has named.
func TestRegionIsMappedAsFarAsRingsNeed(t *testing.T) {
	leavesNothing(t)
	f := newFabric(t)
	l := listen(t, f, 1)
	before := mappedNow(t)
	for range 3 {
		a, b, err := connectEnds(f, l, with(maxRegion), with(maxRegion/2))
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
	require.Less(t, mappedNow(t), before+(256<<20))
}

// Memory that is registered later is mapped when it is registered, at either end, while
// messages to what there was go on.
func TestRegionGrowsWhileMessagesAreSent(t *testing.T) {
	leavesNothing(t)
	a, b := connected(t, with(64<<20))
	kept := [][]byte{b.mem.Bytes()}
	for i, n := 0, 4<<10; n <= 16<<20; i, n = i+1, 2*n {
		more, err := b.Register(n, fabric.RemoteWrite)
		require.NoError(t, err)
		var both sync.WaitGroup
		both.Go(func() {
			assert.NoError(t, a.PostSend([]fabric.WorkRequest{a.write(b, 8*i, uint32(i), "earlier")}))
		})
		both.Go(func() { assert.NoError(t, a.Reach(ctx, more.Addr(), more.RKey(), n)) })
		both.Wait()
		for _, at := range []int{0, n - 5} {
			post(t, a, fabric.WorkRequest{Op: fabric.Write, Data: []byte("later"), RKey: more.RKey(), RemoteAddr: more.Addr() + uint64(at)})
			assert.Equal(t, "later", string(more.Bytes()[at:at+5]))
		}
		assert.Equal(t, "earlier", string(b.mem.Bytes()[8*i:8*i+7]))
		if i == 3 {
			more.Keep()
			kept = append(kept, more.Bytes())
		}
	}
	assert.LessOrEqual(t, len(b.pieces)+len(a.windows), 20, "pieces")
	b.mem.Keep()
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	for _, mem := range kept {
		require.Nil(t, touch(mem), "what was kept can be touched")
	}
}

// touch writes to memory, and returns the fault if that was impossible.
func touch(mem []byte) (fault any) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { fault = recover() }()
	for i := 0; i < len(mem); i += os.Getpagesize() {
		mem[i]++
	}
	return nil
}

// Where there are few addresses, connections to peers with large regions work, until one fails
// with an error. The process goes on.
func TestAddressesThatAreUsedUpFailConnections(t *testing.T) {
	inProcess(t, nil, func() {
		space := uint64(2 << 30)
		if strconv.IntSize == 64 {
			space *= 2 // the race detector takes some
		}
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: mappedNow(t) + space, Max: unix.RLIM_INFINITY}))
		f := newFabric(t)
		l := listen(t, f, 1)
		for i := range 1000 {
			a, b, err := connectEnds(f, l, with(maxRegion/2), with(maxRegion/4))
			if err == nil {
				_, err = a.Register(32<<20, fabric.LocalWrite)
			}
			if err != nil {
				require.ErrorIs(t, err, syscall.ENOMEM)
				require.Greater(t, i, 3)
				require.Len(t, make([]byte, space/8), int(space/8)) // of addresses that are left
				return
			}
			t.Cleanup(func() {
				a.Close()
				b.Close()
			})
		}
		t.Fatal("no connection has failed")
	})
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
	a, b := connected(t, with(4*ringSize)) // of which open registers a quarter
	for name, ends := range map[string][2]end{"dialer": {a, b}, "listener": {b, a}} {
		t.Run(name, func(t *testing.T) {
			one, other := ends[0], ends[1]
			at, key := other.mem.Addr(), other.mem.RKey()
			require.NoError(t, one.Reach(ctx, at, key, ringSize))
			synctest.Test(t, func(t *testing.T) {
				before := time.Now()
				require.ErrorIs(t, one.Reach(ctx, at+ringSize, key, 4096), syscall.EFAULT)
				require.ErrorIs(t, one.Reach(ctx, at+ringSize-4096, key, 8192), syscall.EFAULT)
				require.Zero(t, time.Since(before))
			})
			more, err := other.Register(ringSize, fabric.RemoteWrite)
			require.NoError(t, err)
			require.NoError(t, one.Reach(ctx, more.Addr(), key, ringSize), "memory that has come since")
			require.NoError(t, one.Reach(ctx, at, key, 2*ringSize))
			require.ErrorIs(t, one.Reach(ctx, at, key, 2*ringSize+1), syscall.EFAULT)
		})
	}
}
