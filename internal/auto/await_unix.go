//go:build unix

package auto

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// AwaitRead waits until a Read would not wait. It asks the kernel by poll(2), which takes neither
// bytes nor the socket's error.
func (c *TCPConn) AwaitRead() error {
	raw, err := c.TCPConn.SyscallConn()
	if err != nil {
		return nil // Read has the error, as below
	}
	err = raw.Read(func(fd uintptr) bool {
		of := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(of, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	var op *net.OpError
	if errors.As(err, &op) {
		op.Op = "read"
	}
	return err
}
