//go:build linux

// Peers that make this process's system calls long.

package shm

import (
	"context"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/limits"
)

// watch has many pollers look at a socket: each of copies of its descriptor in each of sets.
func watch(t *testing.T, s *socket, copies, sets int) {
	t.Helper()
	limits.NeedDescriptors(t, uint64(copies+sets))
	var fds []int
	t.Cleanup(func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	})
	for range copies {
		fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		fds = append(fds, fd)
	}
	for range sets {
		set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		require.NoError(t, err)
		fds = append(fds, set)
		for _, fd := range fds[:copies] {
			require.NoError(t, unix.EpollCtl(set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT}))
		}
	}
}

// The kernel looks at each of a socket's pollers when somebody rings. A peer with so many that it takes
// milliseconds loses its connection.
func TestPeerWithManyPollersLosesItsConnection(t *testing.T) {
	leavesNothing(t)
	a, b := connected(t, options)
	watch(t, b.sock, 200, 500)
	for range 2 + slowInARow {
		require.NoError(t, b.Arm())
		require.NoError(t, a.post(send(1, "x")))
		poll(t, b)
		if _, err := a.Poll(make([]fabric.Completion, 4)); err != nil {
			require.ErrorIs(t, err, errSlow)
			require.ErrorIs(t, err, fabric.ErrQueuePair)
			return
		}
	}
	t.Fatal("the peer is borne with")
}

// Many calls ring at once, beside Close. What one of them leaves to another is rung.
func TestManyRingAtOnce(t *testing.T) {
	leavesNothing(t)
	a, _ := connected(t, options)
	ring := func(n int) {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range n {
					a.endpoint.ringDue.Store(true)
					a.Ring()
				}
			})
		}
		all.Wait()
	}
	ring(1000)
	require.False(t, a.RingDue())
	closed := make(chan error)
	go func() { closed <- a.Close() }()
	ring(100)
	require.NoError(t, <-closed)
}

// A call may take long once, for whatever reason, and often if others have the processor.
func TestPatience(t *testing.T) {
	var p patience
	require.NoError(t, p.end(clock()-2*slowDoorbell))
	require.True(t, p.doubting)
	for range 10 {
		for range slowInARow - 1 {
			require.NoError(t, p.end(lockedTime()-2*slowDoorbell))
		}
		require.NoError(t, p.end(lockedTime()+hang.After), "a call that takes no time")
		require.False(t, p.doubting)
		require.NoError(t, p.end(clock()-2*slowDoorbell))
	}
	for range slowInARow - 1 {
		require.NoError(t, p.end(lockedTime()-2*slowDoorbell))
	}
	require.ErrorIs(t, p.end(lockedTime()-2*slowDoorbell), errSlow)
}

// lockedTime is what begin returns of a patience that is doubting.
func lockedTime() (began time.Duration) {
	p := patience{doubting: true}
	return p.begin()
}

// missing makes a page that the kernel waits for when it touches it, until comes is called.
func missing(t *testing.T) (page []byte, touched func(), comes func()) {
	t.Helper()
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		skip(t, "userfaultfd, of which the kernel tells the privileged alone: %v", errno)
	}
	page, err := unix.Mmap(-1, 0, pages(1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	const (
		api      = 0xc018aa3f // UFFDIO_API
		register = 0xc020aa00 // UFFDIO_REGISTER
	)
	version := [3]uint64{0xaa}
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, api, uintptr(unsafe.Pointer(&version)))
	require.Zero(t, errno)
	area := [4]uint64{uint64(address(page)), uint64(len(page)), 1} // those that are missing
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, register, uintptr(unsafe.Pointer(&area)))
	require.Zero(t, errno)
	touched = func() {
		var event [32]byte
		_, err := unix.Read(int(fd), event[:])
		require.NoError(t, err)
	}
	return page, touched, func() { unix.Close(int(fd)) }
}

// hold has a write to a file hold the file's lock until release is called.
func hold(t *testing.T, file int) (release func()) {
	t.Helper()
	page, touched, comes := missing(t)
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = unix.Pwrite(file, page, 0)
	}()
	touched()
	return func() {
		comes()
		<-written
		unix.Munmap(page)
	}
}

// A listener that holds the lock of the memory that it shares makes no dial longer than its context.
func TestDialEndsWithItsContextWhateverTheListenerHolds(t *testing.T) {
	_, _, comes := missing(t)
	comes()
	leavesNothing(t)
	f := newFabric(t)
	l := listen(t, f, 1)
	ep, err := f.Dial(ctx, netip.AddrPort{}, l.Addr())
	require.NoError(t, err)
	a, err := open(ep, options)
	require.NoError(t, err)
	soonCanceled, cancel := context.WithCancel(ctx)
	connected := make(chan error, 1)
	go func() {
		_, err := a.Connect(soonCanceled, nil)
		connected <- err
	}()

	passive, err := l.Accept()
	require.NoError(t, err)
	b, err := open(passive, options)
	require.NoError(t, err)
	require.NoError(t, b.createShared())
	release := hold(t, b.fd)
	require.NoError(t, b.sock.send((&frame{kind: rep, shape: b.shape}).encode(), b.fd))
	hang.Unless(t, func() bool {
		left, err := unix.IoctlGetInt(b.sock.fd, unix.TIOCOUTQ)
		return err == nil && left == 0
	}, "the dialer takes the answer")
	cancel()
	soon(t, "Connect and Close", func() {
		assert.ErrorIs(t, <-connected, context.Canceled)
		assert.NoError(t, a.Close())
	})
	release()
	require.NoError(t, b.Close())
	requireAccepts(t, f, l)
}

// Calls that do not return keep so many threads and no more; then dials to that address fail.
func TestCallsThatAreHeldUpAreBounded(t *testing.T) {
	leavesNothing(t)
	c, other := newCloser(), newCloser()
	release := make(chan struct{})
	over, cancel := context.WithCancel(ctx)
	cancel()
	var left []<-chan struct{}
	for c.admit() == nil {
		ended, err := c.within(over, func() error {
			<-release
			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		left = append(left, ended)
	}
	require.Len(t, left, maxClosing+maxWaiting)
	require.ErrorIs(t, c.admit(), errHeldUp)
	require.NoError(t, other.admit())
	_, err := other.within(ctx, func() error { return syscall.EFAULT })
	require.Equal(t, syscall.EFAULT, err)
	close(release)
	for _, ended := range left {
		<-ended
	}
	require.NoError(t, c.admit())
}
