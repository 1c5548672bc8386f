package proxy

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/internal/passrights"
)

// The kernel's sockets are not blocking, but a call still takes as long as whoever owns the other
// end makes it, with pollers or with what it has sent. So none is a raw one.

// socket is a socket of the kernel's. The kernel reports only to one call that the peer is
// gone: if that is a write, a read after it finds what looks like the end of the stream.
// So socket remembers the error.
type socket struct {
	raw    syscall.RawConn
	rights bool // the peer can queue descriptors here: it is a Unix socket, before Linux 6.16

	mu   sync.Mutex    // held during a write; guards lost
	lost syscall.Errno // an error that no read gets
}

// newSocket returns nil if no socket of the kernel's carries c.
func newSocket(c endpoint.Conn) carrier {
	s := new(socket)
	switch c := endpoint.Carrier(c).(type) {
	case *net.TCPConn:
		s.raw, _ = c.SyscallConn() // never fails for a connection
	case *net.UnixConn:
		s.raw, _ = c.SyscallConn()
		_ = s.raw.Control(func(fd uintptr) { s.rights = passrights.Allowed(int(fd)) })
	default:
		return nil
	}
	return s
}

// read is the system call. It reads no descriptors, which the kernel would close in it: EPROTO
// is for those.
func (s *socket) read(fd uintptr, p []byte) (int, syscall.Errno) {
	if s.rights {
		n, errno := peek(fd, p)
		if n == 0 || errno != 0 {
			return 0, errno
		}
		p = p[:n]
	}
	return call(syscall.SYS_READ, fd, p)
}

// peek is read, and leaves what it reads in the queue.
func peek(fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, _, flags, _, err := unix.Recvmsg(int(fd), p, nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch errno, _ := err.(syscall.Errno); {
		case errno == syscall.EINTR:
		case errno != 0:
			return 0, errno
		case flags&unix.MSG_CTRUNC != 0:
			return 0, syscall.EPROTO
		default:
			return n, 0
		}
	}
}

// holdsDescriptors has the peer queue no more.
func (s *socket) holdsDescriptors() (may bool) {
	if !s.rights {
		return false
	}
	b := buffers.Get().(*buffer)
	defer buffers.Put(b)
	_ = s.raw.Control(func(fd uintptr) {
		_ = unix.Shutdown(int(fd), unix.SHUT_RD)
		n, errno := peek(fd, b[:])
		may = errno == syscall.EPROTO || n == len(b) // behind which there may be more
	})
	return may
}

// write is the system call. After EPIPE, which has had its reason reported to a read, or
// follows the peer's end of the stream, it remembers no error.
func (s *socket) write(fd uintptr, p []byte) (int, syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, errno := call(syscall.SYS_WRITE, fd, p)
	switch errno {
	case 0, syscall.EAGAIN, syscall.EPIPE:
	default:
		s.lost = errno
	}
	return n, errno
}

// end is the error of a read that has found no more bytes.
func (s *socket) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != 0 {
		return os.NewSyscallError("read", s.lost)
	}
	return io.EOF
}

// source takes a buffer for each read, and puts it back before it waits.
func (s *socket) source() source {
	var b *buffer
	var n int
	var errno syscall.Errno
	read := func(fd uintptr) bool {
		b = buffers.Get().(*buffer)
		n, errno = s.read(fd, b[:])
		if n == 0 {
			buffers.Put(b)
		}
		return errno != syscall.EAGAIN
	}
	return func() (*buffer, int, error) {
		n = 0
		err := s.raw.Read(read)
		switch {
		case err != nil:
			return nil, 0, err
		case errno != 0:
			return nil, 0, os.NewSyscallError("read", errno)
		case n == 0:
			return nil, 0, s.end()
		}
		return b, n, nil
	}
}

// sink writes until the kernel has taken everything, and counts each part that it takes.
func (s *socket) sink(taken *atomic.Uint64) sink {
	var left []byte
	var errno syscall.Errno
	write := func(fd uintptr) bool {
		for len(left) > 0 {
			var n int
			if n, errno = s.write(fd, left); errno != 0 {
				return errno != syscall.EAGAIN
			}
			left = left[n:]
			taken.Add(uint64(n))
		}
		return true
	}
	return func(p []byte) error {
		left, errno = p, 0
		err := s.raw.Write(write)
		left = nil
		if err == nil && errno != 0 {
			err = os.NewSyscallError("write", errno)
		}
		return err
	}
}

// lostBy asks the kernel for an error, which it does not report again. EPIPE is that of a
// peer that has ended its stream and takes no more: what it has sent is complete. A write that
// is under way, for as long as the peer makes it, gets the error itself.
func (s *socket) lostBy() error {
	if !s.mu.TryLock() {
		return nil
	}
	defer s.mu.Unlock()
	_ = s.raw.Control(func(fd uintptr) {
		errno, _ := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR)
		if errno != 0 && syscall.Errno(errno) != syscall.EPIPE {
			s.lost = syscall.Errno(errno)
		}
	})
	if s.lost == 0 {
		return nil
	}
	return s.lost
}

// taken is how many bytes the kernel holds that were written and that the peer has not
// taken: of a Unix socket, with the memory that they lie in.
func (s *socket) taken() uint64 {
	var n int
	_ = s.raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) })
	return uint64(n)
}

// call is the system call read or write, of which p is not empty.
func call(number, fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.Syscall(number, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
