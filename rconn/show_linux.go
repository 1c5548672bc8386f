package rconn

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// show calls f with a socket from which p can be read. If p is empty, the socket is at its end
// where end is io.EOF, and has been reset where it is another error. show returns how many bytes
// f has read, and what f has returned.
func show(p []byte, end error, f func(fd uintptr) bool) (taken int, done bool, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, false, os.NewSyscallError("socketpair", err)
	}
	fd, peer := pair[0], pair[1]
	defer unix.Close(fd)
	shown, err := unix.Write(peer, p)
	if end != nil && end != io.EOF {
		// A Unix socket that is closed with bytes unread resets the other one.
		_, lost := unix.Write(fd, []byte{0})
		err = errors.Join(err, lost)
	}
	if end != nil {
		err = errors.Join(err, unix.Close(peer))
	} else {
		defer unix.Close(peer)
	}
	if err = errors.Join(err, unix.Shutdown(fd, unix.SHUT_WR)); err != nil {
		return 0, false, err
	}
	done = f(uintptr(fd))
	left, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	return shown - left, done, os.NewSyscallError("ioctl", err)
}
