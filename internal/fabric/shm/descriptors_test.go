//go:build linux

package shm

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hang"
	"github.com/ringnet/ringnet/internal/wire"
)

// useUpDescriptors leaves this process without a descriptor until the function that it returns is
// called.
func useUpDescriptors(t *testing.T) (release func()) {
	t.Helper()
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	highest, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	low := before
	low.Cur = uint64(highest) + 16
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	all := []int{highest}
	for {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			break
		}
		all = append(all, fd)
	}
	return func() {
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
		for _, fd := range all {
			_ = unix.Close(fd)
		}
	}
}

// A listener whose process has no descriptor left tells each dialer so at once, and takes the next
// when there is one again.
func TestAListenerWithoutDescriptorsRefusesAtOnce(t *testing.T) {
	f := newFabric(t)
	fl, err := f.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 8)
	require.NoError(t, err)
	defer fl.Close()
	at, err := unix.Getsockname(fl.(*listener).sock.fd)
	require.NoError(t, err)
	var dialers []int
	for range 3 {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(fd)
		wait := unix.NsecToTimeval(int64(hang.After))
		require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
		dialers = append(dialers, fd)
	}
	release := useUpDescriptors(t)
	defer func() { release() }()
	for _, fd := range dialers {
		require.NoError(t, unix.Connect(fd, at))
		b := make([]byte, 4096)
		n, err := unix.Read(fd, b)
		require.NoError(t, err, "no answer")
		refused, err := decodeFrame(b[:n])
		require.NoError(t, err)
		require.Equal(t, rej, refused.kind)
		require.EqualValues(t, fabric.RejectConsumer, refused.reason)
		why := wire.DecodeReject(refused.private)
		require.True(t, why.Busy)
		require.Contains(t, why.Reason, syscall.EMFILE.Error())
	}
	release()
	release = func() {}
	last, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(last)
	require.NoError(t, unix.Connect(last, at))
	hang.Unless(t, func() bool {
		l := fl.(*listener)
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.requests) == 1
	})
}
