// Package passrights keeps file descriptors away from Unix sockets.
//
// Whoever can send to a Unix socket can queue descriptors there (SCM_RIGHTS), and the kernel closes those that
// the receiver does not take in the call that reads, or closes the socket: for as long as the sender likes, if
// one is a TCP connection that lingers. SO_PASSRIGHTS (Linux 6.16) has the sender's call fail with EPERM.
package passrights

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// soPassRights is SO_PASSRIGHTS (include/uapi/asm-generic/socket.h).
const soPassRights = 83

// Set allows the peers of a Unix socket to queue descriptors there, or forbids it. Sockets that a listener
// accepts inherit that.
func Set(fd int, yes bool) error {
	value := 0
	if yes {
		value = 1
	}
	return os.NewSyscallError("setsockopt SO_PASSRIGHTS", unix.SetsockoptInt(fd, unix.SOL_SOCKET, soPassRights, value))
}

// Allowed reports whether peers can queue descriptors at a Unix socket.
func Allowed(fd int) bool {
	yes, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPassRights)
	return err != nil || yes != 0
}

// Refuse is a Control of net.Dialer and net.ListenConfig that forbids it, where the kernel can.
func Refuse(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = Set(int(fd), false) })
}
