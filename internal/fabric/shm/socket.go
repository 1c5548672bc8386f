//go:build linux

package shm

// The Unix socket of a connection: packets with descriptors during the
// handshake, doorbells after it, and the news of the peer's death.
//
// It is of type SOCK_SEQPACKET, so that a message of the handshake arrives
// whole or not at all and a doorbell is never taken for a part of one. Doorbells
// go over it, and not through an eventfd, because O_NONBLOCK belongs to a shared
// description: of an eventfd a peer could clear it under us, but each end of a
// socket has a description of its own.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket is a Unix socket in Go's netpoller.
type socket struct {
	fd     int
	file   *os.File // owns fd
	raw    syscall.RawConn
	closed atomic.Bool

	// rights says that the peer may queue descriptors here. If it has, closer
	// closes the socket.
	rights bool
	closer *closer

	// woken says that the read deadline is in the past, or about to be, because
	// of wake.
	woken atomic.Bool
}

// newSocket returns a socket at which nobody can queue descriptors, if the
// kernel allows that.
func (f *shm) newSocket(c *closer) (*socket, error) {
	s, err := newSocket(c)
	if err == nil {
		s.rights = f.lenient || s.passRights(false) != nil
	}
	return s, err
}

func newSocket(c *closer) (*socket, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return pollSocket(fd, false, c)
}

// pollSocket takes a descriptor over.
func pollSocket(fd int, rights bool, c *closer) (*socket, error) {
	s := &socket{fd: fd, file: os.NewFile(uintptr(fd), "shm"), rights: rights, closer: c}
	err := s.file.SetReadDeadline(time.Time{}) // fails if it cannot be polled
	if err == nil {
		s.raw, err = s.file.SyscallConn()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *socket) close() error {
	switch {
	case s.closed.Swap(true):
		return os.ErrClosed
	case s.rights && s.burdened():
		s.closer.close(s.file)
		return nil
	}
	return s.file.Close()
}

// burdened reports whether closing the socket closes descriptors that are queued
// here. It ends what the peer may send and takes what the peer has sent, up to
// the first descriptor.
func (s *socket) burdened() bool {
	err := errors.Join(
		unix.Shutdown(s.fd, unix.SHUT_RD),
		// Every packet brings its sender's credentials then, and the end none.
		unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1))
	if err != nil {
		return true
	}
	var b [1]byte
	credentials := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	for {
		_, n, flags, _, err := unix.Recvmsg(s.fd, b[:], credentials, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR, err == unix.ECONNRESET: // which is told once
			continue
		case err == unix.ENOTCONN:
			return s.listens() // with connections queued, perhaps
		case err != nil, flags&unix.MSG_CTRUNC != 0:
			return true
		case n == 0:
			return false
		}
		_, _ = unix.Read(s.fd, b[:])
	}
}

func (s *socket) listens() bool {
	yes, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err != nil || yes != 0
}

// soPassRights is SO_PASSRIGHTS (include/uapi/asm-generic/socket.h), which the
// sockets that a listener accepts have from it.
const soPassRights = 83

// passRights says whether descriptors may be queued here from now on.
func (s *socket) passRights(yes bool) error {
	value := 0
	if yes {
		value = 1
	}
	return os.NewSyscallError("setsockopt SO_PASSRIGHTS", unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, soPassRights, value))
}

// next looks at the next packet without taking it. It returns EAGAIN if there is
// none.
func (s *socket) next() (descriptors bool, err error) {
	for {
		var b [1]byte
		_, _, flags, _, err := unix.Recvmsg(s.fd, b[:], nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return flags&unix.MSG_CTRUNC != 0, err
		}
	}
}

// errDescriptors: they stay where they are until the socket is closed.
var errDescriptors = fmt.Errorf("the peer sent descriptors that nobody wants: %w", syscall.EPROTO)

// strange returns errDescriptors if there are any in the next packet.
func (s *socket) strange() error {
	if !s.rights {
		return nil
	}
	if descriptors, err := s.next(); err == nil && descriptors {
		return errDescriptors
	}
	return nil
}

// past is a deadline that makes a read return at once.
var past = time.Unix(1, 0)

// wake makes the present or the next wait return.
func (s *socket) wake() {
	if !s.woken.Swap(true) {
		s.file.SetReadDeadline(past)
	}
}

// wait runs take when the socket may be readable until it returns true, or
// until wake.
func (s *socket) wait(take func(fd uintptr) bool) error {
	err := s.raw.Read(take)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// In this order: a wake in between finds woken set and does nothing,
		// rightly, since this wait returns.
		s.file.SetReadDeadline(time.Time{})
		s.woken.Store(false)
		return nil
	}
	return err
}

// receive returns the next packet, its data in b, and the one descriptor that
// came with it, or -1, if descriptors are wanted at all. It is for the handshake:
// the end of ctx interrupts it.
func (s *socket) receive(ctx context.Context, b []byte, want bool) (n, fd int, err error) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		s.file.SetReadDeadline(past)
		close(done)
	})
	defer func() {
		if !stop() {
			<-done
		}
		s.file.SetReadDeadline(time.Time{})
		if s.woken.Load() {
			s.file.SetReadDeadline(past) // for the wait to come
		}
	}()
	for {
		var got error
		err := s.raw.Read(func(uintptr) bool {
			n, fd, got = s.receivePacket(b, want)
			return got != unix.EAGAIN
		})
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, fd, errors.Join(err, got)
		}
		s.file.SetReadDeadline(time.Time{})
		if err := ctx.Err(); err != nil {
			return 0, -1, err
		}
	}
}

// receivePacket reads one packet without waiting. Whatever descriptors come
// with it, at most one is left open: the one returned.
func (s *socket) receivePacket(b []byte, want bool) (n, fd int, err error) {
	var oob []byte
	if want {
		oob = make([]byte, 64)
	} else if err := s.strange(); err != nil {
		return 0, -1, err
	}
	n, oobn, flags, _, err := unix.Recvmsg(s.fd, b, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	for err == unix.EINTR {
		n, oobn, flags, _, err = unix.Recvmsg(s.fd, b, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	}
	if err != nil {
		return 0, -1, err
	}
	fds, err := descriptors(oob[:oobn])
	switch {
	case err != nil:
	case len(fds) > 1 || flags&unix.MSG_CTRUNC != 0:
		// Those for which there was no room, in oob or among this process's
		// descriptors, the kernel has not made.
		err = errors.New("the peer sent more descriptors than one, or there is no room for one here")
	case flags&unix.MSG_TRUNC != 0:
		err = errors.New("handshake message that is too long")
	case n == 0:
		err = io.EOF // also if the peer sent an empty packet
	case len(fds) == 1:
		return n, fds[0], nil
	default:
		return n, -1, nil
	}
	for _, fd := range fds {
		s.closer.close(descriptor(fd))
	}
	return 0, -1, err
}

// descriptors are those that control messages brought.
func descriptors(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	var fds []int
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds, nil
}

// send sends a packet of the handshake, with a descriptor unless fd is -1. It
// does not wait: there is always room for an honest peer's few packets.
func (s *socket) send(b []byte, fd int) error {
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	for {
		err := unix.Sendmsg(s.fd, b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return os.NewSyscallError("sendmsg", err)
		}
	}
}

// doorbell is what wakes a peer: what it says does not matter.
var doorbell = []byte{0}

// The system calls of doorbells never wait, so the scheduler is not told of them.
// In a process that has had nothing to do for a moment it would wake a thread to
// watch over each, which takes longer than to ring.

// ring wakes the peer. A socket that is full of doorbells wakes it too, and one
// whose peer is gone says so to whoever waits. Any other error means that the peer
// sleeps on.
func (s *socket) ring() error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), uintptr(unsafe.Pointer(&doorbell[0])), 1,
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	switch errno {
	case 0, unix.EAGAIN, unix.EPIPE, unix.ECONNRESET, unix.ECONNREFUSED, unix.ENOTCONN:
		return nil
	default:
		return os.NewSyscallError("sendto", errno)
	}
}

// take reads doorbells, or EAGAIN if there are none.
func (s *socket) take(b []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(s.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// bind gives the socket a name.
func (s *socket) bind(name string) error {
	return os.NewSyscallError("bind", unix.Bind(s.fd, &unix.SockaddrUnix{Name: name}))
}

// connect connects the socket with the listener that has a name. It does not
// wait: EAGAIN means that there is no room in the kernel's queue of the listener.
// A socket that is refused may try again.
func (s *socket) connect(name string) error {
	for {
		err := unix.Connect(s.fd, &unix.SockaddrUnix{Name: name})
		if err != unix.EINTR {
			return os.NewSyscallError("connect", err)
		}
	}
}

// peer is the user at the other end.
func (s *socket) peer() (uid uint32, err error) {
	cred, err := s.credentials()
	if err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

// process is the one at the other end, or 0 if it has no number here.
func (s *socket) process() int32 {
	cred, err := s.credentials()
	if err != nil {
		return 0
	}
	return cred.Pid
}

// credentials are those that the other end had when it connected, or began to listen.
func (s *socket) credentials() (*unix.Ucred, error) {
	cred, err := unix.GetsockoptUcred(s.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	return cred, nil
}
