//go:build linux

package shm

// The Unix socket of a connection. It carries packets with descriptors during
// the handshake and doorbells after it, and ends when the peer's process does.
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
	"unsafe"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/passrights"
	"golang.org/x/sys/unix"
)

// socket is a Unix socket.
type socket struct {
	fd      int
	sleeper *fabric.Sleeper // owns fd
	closed  atomic.Bool

	// rights is set if the peer can queue descriptors here. If it has queued
	// any, closer closes the socket.
	rights bool
	closer closer
}

// newSocket returns a socket at which no peer can queue descriptors, if the
// kernel has SO_PASSRIGHTS.
func (f *shm) newSocket(c closer) (*socket, error) {
	s, err := newSocket(c)
	if err == nil {
		s.rights = f.noPassRights || s.setPassRights(false) != nil
	}
	return s, err
}

func newSocket(c closer) (*socket, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return pollSocket(fd, false, c)
}

// pollSocket makes a socket of a descriptor, which it closes if it fails.
func pollSocket(fd int, rights bool, c closer) (*socket, error) {
	sleeper, err := fabric.NewSleeper(fd, "shm")
	s := &socket{fd: fd, sleeper: sleeper, rights: rights, closer: c}
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
	case s.rights && mayHoldDescriptors(s.fd):
		s.closer.close(s.sleeper)
		return nil
	}
	return s.sleeper.Close()
}

// closeAccepted closes the descriptor of a connection that was taken from the queue of a
// listener with this socket, and of which no socket was made.
func (s *socket) closeAccepted(fd int) {
	if s.rights && mayHoldDescriptors(fd) {
		s.closer.close(descriptor(fd))
		return
	}
	_ = unix.Close(fd)
}

// mayHoldDescriptors reports whether descriptors may be queued at a socket, which closing it
// would close. It shuts the socket down for reading, and discards the queued packets
// before the first one with descriptors.
func mayHoldDescriptors(fd int) bool {
	err := errors.Join(
		unix.Shutdown(fd, unix.SHUT_RD),
		// From now on each packet has its sender's credentials, and the end none.
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1))
	if err != nil {
		return true
	}
	var b [1]byte
	credentials := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	for {
		_, n, flags, err := recvmsg(fd, b[:], credentials, unix.MSG_PEEK)
		switch {
		case err == unix.ECONNRESET: // which the kernel reports once
			continue
		case err == unix.ENOTCONN:
			return listens(fd) // descriptors may be queued at connections in its queue
		case err != nil, flags&unix.MSG_CTRUNC != 0:
			return true
		case n == 0:
			return false
		}
		_, _ = unix.Read(fd, b[:])
	}
}

func listens(fd int) bool {
	yes, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err != nil || yes != 0
}

// setPassRights allows the peer to queue descriptors here, or forbids it.
func (s *socket) setPassRights(yes bool) error { return passrights.Set(s.fd, yes) }

// peekDescriptors reports whether the next packet, which it leaves in the queue, has
// descriptors. It returns EAGAIN if there is no packet.
func (s *socket) peekDescriptors() (descriptors bool, err error) {
	var b [1]byte
	_, _, flags, err := recvmsg(s.fd, b[:], nil, unix.MSG_PEEK)
	return flags&unix.MSG_CTRUNC != 0, err
}

// recvmsg receives a packet, and control messages, without waiting.
func recvmsg(fd int, b, oob []byte, flags int) (n, oobn, recvflags int, err error) {
	for {
		n, oobn, recvflags, _, err = unix.Recvmsg(fd, b, oob, flags|unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return n, oobn, recvflags, err
		}
	}
}

// errDescriptors is for descriptors that came unasked. They stay in the socket's
// queue until it is closed.
var errDescriptors = fmt.Errorf("the peer sent file descriptors that this side had not asked for: %w", syscall.EPROTO)

// checkNoDescriptors returns errDescriptors if the next packet has descriptors. If it returns
// EAGAIN, there is no packet yet, and the next one has not been looked at: it must not be read.
func (s *socket) checkNoDescriptors() error {
	if !s.rights {
		return nil
	}
	descriptors, err := s.peekDescriptors()
	if descriptors {
		return errDescriptors
	}
	return err
}

// readable reports whether something has come.
func (s *socket) readable() bool {
	p := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return n > 0 || err != nil
}

// receive waits, until ctx ends, for the next packet of the handshake. It puts
// the packet's n bytes into b and returns the one descriptor that came with them,
// or -1. Unless want is set, a descriptor is an error.
func (s *socket) receive(ctx context.Context, b []byte, want bool) (n, fd int, err error) {
	var got error
	err = s.sleeper.SleepUntil(ctx, func(uintptr) bool {
		n, fd, got = s.receivePacket(b, want)
		return got != unix.EAGAIN
	})
	if err != nil {
		return 0, -1, err
	}
	return n, fd, got
}

// receivePacket reads one packet without waiting. Whatever descriptors come
// with it, at most one is left open: the one returned.
func (s *socket) receivePacket(b []byte, want bool) (n, fd int, err error) {
	var oob []byte
	if want {
		oob = make([]byte, 64)
	} else if err := s.checkNoDescriptors(); err != nil {
		return 0, -1, err
	}
	n, oobn, flags, err := recvmsg(s.fd, b, oob, 0)
	if err != nil {
		return 0, -1, err
	}
	fds, err := descriptors(oob[:oobn])
	switch {
	case err != nil:
	case len(fds) == 0 && flags&unix.MSG_CTRUNC != 0: // oob has room, so this process has none
		err = os.NewSyscallError("recvmsg", syscall.EMFILE)
	case len(fds) > 1:
		err = errors.New("the peer sent more than one file descriptor")
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

// descriptors returns the file descriptors in control messages.
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

// doorbell is the packet that wakes a peer. Its content does not matter.
var doorbell = []byte{0}

// ring and take never block, but the kernel looks at every poller of the peer's socket, of which
// the peer may have many. So they are no raw system calls, which would keep a processor of Go's
// scheduler, and patience measures them.

// ring wakes the peer. If the socket is full, the doorbells in it wake the peer;
// if the peer has gone, this end's Wait notices. After any other error the peer
// sleeps on.
func (s *socket) ring() error {
	_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(s.fd), uintptr(unsafe.Pointer(&doorbell[0])), 1,
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	switch errno {
	case 0, unix.EAGAIN, unix.EPIPE, unix.ECONNRESET, unix.ECONNREFUSED, unix.ENOTCONN:
		return nil
	default:
		return os.NewSyscallError("sendto", errno)
	}
}

// doorbells is memory to take some doorbells with one system call.
type doorbells struct {
	packets [4]packet
	content [4]byte
	buffers [4]unix.Iovec
}

// packet is what recvmmsg fills in: struct mmsghdr.
type packet struct {
	header unix.Msghdr
	n      uint32
}

// take takes some doorbells, and says how many, and whether there may be more. It returns io.EOF
// if the socket has ended, and errDescriptors if the next packet has descriptors.
func (s *socket) take(d *doorbells) (n uint64, more bool, err error) {
	count := len(d.packets)
	if s.rights {
		switch err := s.checkNoDescriptors(); err {
		case nil:
		case unix.EAGAIN:
			return 0, false, nil
		default:
			return 0, false, err
		}
		count = 1 // no other has been looked at
	}
	for i := range count {
		d.buffers[i].Base = &d.content[i]
		d.buffers[i].SetLen(1)
		d.packets[i].header.Iov = &d.buffers[i]
		d.packets[i].header.SetIovlen(1)
	}
	taken, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&d.packets[0])), uintptr(count),
		unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0:
	case unix.EAGAIN:
		return 0, false, nil
	case unix.EINTR:
		return 0, true, nil
	default:
		return 0, false, os.NewSyscallError("recvmmsg", errno)
	}
	for _, p := range d.packets[:taken] {
		if p.n == 0 {
			return n, false, io.EOF
		}
		n++
	}
	return n, int(taken) == count, nil
}

// bind gives the socket a name.
func (s *socket) bind(name string) error {
	return os.NewSyscallError("bind", unix.Bind(s.fd, &unix.SockaddrUnix{Name: name}))
}

// connect connects the socket to the listener that has a name. It does not wait:
// EAGAIN means that the kernel's queue of the listener is full. After a refusal
// the socket may try again.
func (s *socket) connect(name string) error {
	for {
		err := unix.Connect(s.fd, &unix.SockaddrUnix{Name: name})
		if err != unix.EINTR {
			return os.NewSyscallError("connect", err)
		}
	}
}

// peer returns the user ID of the other end.
func (s *socket) peer() (uid uint32, err error) {
	cred, err := credentials(s.fd)
	return cred.Uid, err
}

// credentials returns those that the other end of a socket had when it connected or began to
// listen. The process ID is 0 if it has none in this PID namespace.
func credentials(fd int) (unix.Ucred, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return unix.Ucred{}, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	return *cred, nil
}

// accept takes a connection from the kernel's queue of a listening socket, or returns EAGAIN.
func (s *socket) accept() (fd int, err error) {
	fd, _, err = unix.Accept4(s.fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	return fd, err
}
