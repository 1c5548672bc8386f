//go:build unix

package autoudp

import (
	"errors"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// maxUDP is how many bytes a datagram may have by UDP over IPv4.
const maxUDP = 65507

// spareSize has room for a message of a proof, whatever buffers the caller has.
const spareSize = wire.ProofAnswerSize + 1

// socket is a UDP socket. It is read by another descriptor than package net's, on which a receiver
// sleeps that can be woken.
type socket struct {
	conn   *net.UDPConn
	local  netip.AddrPort
	remote netip.AddrPort // valid if it is connected
	failed func(error)

	*fabric.Sleeper // owns fd
	closing         sync.RWMutex
	fd              int  // -1: closed; guarded by closing
	readable        bool // something has arrived since receive has found nothing
	asleep          bool // in wait

	// Of the one call of receive:
	pieces [][]byte
	spare  []byte // behind the caller's buffers
	whole  []byte // a datagram in one piece

	sending sync.Mutex
	out     []byte // a datagram in one piece; guarded by sending
}

func listenUDP(local netip.AddrPort, o fabric.DatagramOptions) (*socket, error) {
	network := "udp" // of both families
	if a := local.Addr(); a.Is4() {
		network = "udp4"
	} else if a.Is6() {
		network = "udp6"
	}
	at := &net.UDPAddr{Port: int(local.Port())}
	if local.Addr().IsValid() {
		at = net.UDPAddrFromAddrPort(local)
	}
	var c *net.UDPConn
	var err error
	if o.Remote.IsValid() {
		c, err = net.DialUDP(network, at, net.UDPAddrFromAddrPort(o.Remote))
	} else {
		c, err = net.ListenUDP(network, at)
	}
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	bound := c.LocalAddr().(*net.UDPAddr).AddrPort()
	s := &socket{
		conn:   c,
		local:  netip.AddrPortFrom(bound.Addr().Unmap(), bound.Port()),
		remote: o.Remote,
		failed: o.Failed,
		spare:  make([]byte, spareSize),
	}
	if s.fd, err = duplicate(c); err != nil {
		_ = c.Close()
		return nil, err
	}
	if s.Sleeper, err = fabric.NewSleeper(s.fd, "udp"); err != nil {
		_ = s.Close()
		return nil, err
	}
	s.setRecvQueue(o.RecvQueue)
	return s, nil
}

// duplicate returns another descriptor of a socket.
func duplicate(c *net.UDPConn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	controlErr := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(controlErr, err)
}

// setRecvQueue has room for so many datagrams of 4 KiB wait.
func (s *socket) setRecvQueue(n int) { _ = s.conn.SetReadBuffer(n << 12) }

// wait waits until something may have arrived, or for Wake.
func (s *socket) wait() {
	s.asleep = false
	_ = s.Sleep(s.hasArrived) // it fails only when the socket is closed
}

// hasArrived reports whether a datagram waits: one does when the Sleeper calls it again.
func (s *socket) hasArrived(fd uintptr) bool {
	if s.asleep {
		s.readable = true
		return true
	}
	_, _, err := unix.Recvfrom(int(fd), nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if err != nil && err != unix.EAGAIN {
		s.fail(err) // it is told only once
	}
	s.readable, s.asleep = err != unix.EAGAIN, err == unix.EAGAIN
	return s.readable
}

// receive takes a datagram that has arrived, if there is one.
func (s *socket) receive(d *fabric.Datagram) bool {
	s.closing.RLock()
	defer s.closing.RUnlock()
	s.pieces = append(append(s.pieces[:0], d.Buffers...), s.spare)
	for s.fd >= 0 {
		n, _, flags, from, err := unix.RecvmsgBuffers(s.fd, s.pieces, nil, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case err == unix.EAGAIN:
			s.readable = false
			return false
		case err == unix.EINTR:
			continue
		case err != nil:
			s.fail(err) // why one that was sent has not reached its receiver
			continue
		}
		if flags&unix.MSG_TRUNC != 0 {
			n = max(n, fabric.Size(s.pieces)+1) // Linux tells how long it was, others do not
		}
		d.From, d.Via, d.Len = addrPortOf(from), fabric.Via{}, n
		wire.DatagramHeader{SourcePort: d.From.Port()}.Put(&d.Header)
		return true
	}
	return false
}

// bytes is the datagram that has been received last, as far as there was room for its n bytes. It is
// valid until the next call.
func (s *socket) bytes(n int) []byte {
	s.whole = s.whole[:0]
	for _, b := range s.pieces {
		s.whole = append(s.whole, b[:min(len(b), n-len(s.whole))]...)
	}
	return s.whole
}

func addrPortOf(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		ip := netip.AddrFrom16(a.Addr).Unmap()
		if a.ZoneId != 0 && ip.Is6() {
			ip = ip.WithZone(fabric.ZoneName(a.ZoneId))
		}
		return netip.AddrPortFrom(ip, uint16(a.Port))
	}
	return netip.AddrPort{}
}

// send sends a datagram, and waits until the socket has room for it.
func (s *socket) send(buffers [][]byte, to netip.AddrPort) fabric.Status {
	s.sending.Lock()
	defer s.sending.Unlock()
	var b []byte
	if len(buffers) == 1 {
		b = buffers[0]
	} else {
		s.out = s.out[:0]
		for _, piece := range buffers {
			s.out = append(s.out, piece...)
		}
		b = s.out
	}
	for range 2 { // the first error may be about what was sent before
		var err error
		if s.remote.IsValid() {
			_, err = s.conn.Write(b)
		} else {
			_, err = s.conn.WriteToUDPAddrPort(b, to)
		}
		if err == nil {
			return fabric.OK
		}
		s.fail(err)
	}
	return fabric.RNRRetryExceeded
}

// fail says why a datagram has not reached its receiver.
func (s *socket) fail(err error) {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err
	}
	if s.failed != nil {
		s.failed(err)
	}
}

func (s *socket) Close() error {
	s.closing.Lock()
	s.fd = -1
	s.closing.Unlock()
	return errors.Join(s.Sleeper.Close(), s.conn.Close())
}
