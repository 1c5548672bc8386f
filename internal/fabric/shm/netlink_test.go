//go:build linux

package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Who has CAP_NET_ADMIN in the network namespace may send to anyone's netlink socket.
func TestNetlinkBelievesTheKernelAlone(t *testing.T) {
	socket := func() (fd int, port uint32) {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		require.NoError(t, unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
		name, err := unix.Getsockname(fd)
		require.NoError(t, err)
		return fd, name.(*unix.SockaddrNetlink).Pid
	}
	asker, port := socket()
	forger, _ := socket()
	order := binary.NativeEndian
	forged := append(order.AppendUint32(nil, unix.SizeofNlMsghdr+8), make([]byte, 12)...)
	order.PutUint16(forged[4:], unix.SOCK_DIAG_BY_FAMILY)
	forged = append(forged, "a forged"...)
	err := unix.Sendto(forger, forged, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port})
	if errors.Is(err, unix.EPERM) {
		t.Skip("may not send to another's netlink socket: needs CAP_NET_ADMIN")
	}
	require.NoError(t, err)
	b := []byte{unix.AF_UNIX, 0, 0, 0} // struct unix_diag_req
	b = order.AppendUint32(b, listening)
	b = order.AppendUint32(b, 0)
	b = order.AppendUint32(b, showName|showUID)
	b = order.AppendUint64(b, ^uint64(0))
	err = askBy(context.Background(), asker, unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, b, func(answer []byte) error {
		require.NotContains(t, string(answer), "a forged")
		return nil
	})
	require.NoError(t, err)
}
