//go:build unix

package auto

// What package net does not do with sockets: bind first, look without reading, wait without reading.

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// bindAnyPort binds a socket to a free port of a local address, and returns the port.
func bindAnyPort(c syscall.RawConn, local netip.Addr) (port uint16, err error) {
	controlErr := c.Control(func(fd uintptr) {
		if err = unix.Bind(int(fd), sockaddr(local)); err != nil {
			err = os.NewSyscallError("bind", err)
			return
		}
		var got unix.Sockaddr
		if got, err = unix.Getsockname(int(fd)); err != nil {
			err = os.NewSyscallError("getsockname", err)
			return
		}
		switch a := got.(type) {
		case *unix.SockaddrInet4:
			port = uint16(a.Port)
		case *unix.SockaddrInet6:
			port = uint16(a.Port)
		}
	})
	return port, errors.Join(controlErr, err)
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	s := &unix.SockaddrInet6{Addr: a.As16()}
	if index, err := strconv.ParseUint(a.Zone(), 10, 32); err == nil {
		s.ZoneId = uint32(index)
	} else if i, err := net.InterfaceByName(a.Zone()); a.Zone() != "" && err == nil {
		s.ZoneId = uint32(i.Index)
	}
	return s
}

// awaitEnd waits until the peer closes a connection, and reads nothing. It returns nil then,
// errData if there are bytes to read, and os.ErrDeadlineExceeded at the connection's read deadline.
func awaitEnd(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var end error
	err = raw.Read(func(fd uintptr) bool {
		end = peek(int(fd))
		return end != unix.EAGAIN
	})
	return cmp.Or(err, end)
}

// isQuiet reports whether a connection is open and has no bytes to read.
func isQuiet(c *net.TCPConn) bool {
	quiet := false
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { quiet = peek(int(fd)) == unix.EAGAIN })
	}
	return err == nil && quiet
}

// isIPv6Only reports whether a socket of IPv6 refuses connections of IPv4.
func isIPv6Only(l *net.TCPListener) bool {
	only := 0
	raw, err := l.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { only, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY) })
	}
	return err == nil && only != 0
}

// peek looks at what a socket has to read. It returns nil at the end of the connection, errData
// if there are bytes, unix.EAGAIN if there is neither, or another error.
func peek(fd int) error {
	for {
		n, _, err := unix.Recvfrom(fd, make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err == nil && n == 0:
			return nil
		case err == nil:
			return errData
		}
		return err
	}
}

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
