package proxy

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
)

// A socket of the kernel never waits in a system call here: it is not blocking.
// So these are raw ones, which the scheduler is not told of. After a moment with
// nothing to do it would wake a thread to watch over each, which takes longer than
// all else that is done for a short message.

// rawSocket is a socket for the functions below, or nil if c is none.
func rawSocket(c endpoint.Conn) syscall.RawConn {
	switch s := c.(type) {
	case *net.TCPConn:
		raw, _ := s.SyscallConn() // never fails for a connection
		return raw
	case *net.UnixConn:
		raw, _ := s.SyscallConn()
		return raw
	}
	return nil
}

// socketSource reads from a socket, or is nil if c is none. The kernel says that
// there is nothing before a buffer has to wait for it.
func socketSource(c endpoint.Conn) source {
	raw := rawSocket(c)
	if raw == nil {
		return nil
	}
	var b *buffer
	var n int
	var errno syscall.Errno
	read := func(fd uintptr) bool {
		b = buffers.Get().(*buffer)
		n, errno = rawCall(syscall.SYS_READ, fd, b[:])
		if n == 0 {
			buffers.Put(b)
		}
		return errno != syscall.EAGAIN
	}
	return func() (*buffer, int, error) {
		n = 0
		err := raw.Read(read)
		switch {
		case err != nil:
			return nil, 0, err
		case errno != 0:
			return nil, 0, os.NewSyscallError("read", errno)
		case n == 0:
			return nil, 0, io.EOF
		}
		return b, n, nil
	}
}

// socketSink writes to a socket, or is nil if c is none.
func socketSink(c endpoint.Conn) sink {
	raw := rawSocket(c)
	if raw == nil {
		return nil
	}
	var left []byte
	var errno syscall.Errno
	write := func(fd uintptr) bool {
		for len(left) > 0 {
			var n int
			if n, errno = rawCall(syscall.SYS_WRITE, fd, left); errno != 0 {
				return errno != syscall.EAGAIN
			}
			left = left[n:]
		}
		return true
	}
	return func(p []byte) (int, error) {
		left, errno = p, 0
		err := raw.Write(write)
		n := len(p) - len(left)
		left = nil
		if err == nil && errno != 0 {
			err = os.NewSyscallError("write", errno)
		}
		return n, err
	}
}

// rawCall is the system call read or write, of which p is not empty.
func rawCall(call, fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall(call, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
