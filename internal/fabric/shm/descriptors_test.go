//go:build linux

package shm

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/wire"
)

// useUpDescriptors leaves this process without a descriptor until the function that it returns is
// called.
func useUpDescriptors(t *testing.T) (release func()) {
	t.Helper()
	hang.Unless(t, func() bool { // nothing of an earlier test is closed meanwhile
		closing.Lock()
		defer closing.Unlock()
		return len(closing.by) == 0
	})
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

// bareDialer is a socket that says nothing.
func bareDialer(t *testing.T) (fd int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	wait := unix.NsecToTimeval(int64(hang.After))
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	return fd
}

// requireNoDescriptor connects to a listener, which has to refuse as one without descriptors.
func requireNoDescriptor(t *testing.T, fd int, at unix.Sockaddr) {
	t.Helper()
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

// waiting is how many connections wait until their request has come.
func (l *listener) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.requests)
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
	dialers := []int{bareDialer(t), bareDialer(t), bareDialer(t)}
	last := bareDialer(t)
	release := useUpDescriptors(t)
	defer func() { release() }()
	for _, fd := range dialers {
		requireNoDescriptor(t, fd, at)
	}
	release()
	release = func() {}
	require.NoError(t, unix.Connect(last, at))
	hang.Unless(t, func() bool { return fl.(*listener).waiting() == 1 })
}

// A listener keeps its spare descriptor as long as it has nobody to refuse. The kernel says that there is no
// descriptor also where there is no connection to accept.
func TestAListenerKeepsItsSpareDescriptorUntilSomebodyDials(t *testing.T) {
	f := newFabric(t)
	fl, err := f.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 8)
	require.NoError(t, err)
	defer fl.Close()
	at, err := unix.Getsockname(fl.(*listener).sock.fd)
	require.NoError(t, err)
	first, second, spare := bareDialer(t), bareDialer(t), bareDialer(t)
	release := useUpDescriptors(t)
	defer release()
	require.NoError(t, unix.Close(spare)) // the last, for the first
	require.NoError(t, unix.Connect(first, at))
	hang.Unless(t, func() bool { return fl.(*listener).waiting() == 1 })
	for range 100_000 { // whoever else needs a descriptor
		if fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC); err == nil {
			defer unix.Close(fd)
		}
	}
	requireNoDescriptor(t, second, at)
}
