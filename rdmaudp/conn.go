package rdmaudp

// A PacketConn: what it is made of, its deadlines, and its end.

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/rdmaudp/internal/ud"
)

// PacketConn sends and receives datagrams: it is a net.PacketConn and a net.Conn. [Listen],
// [ListenMulticast] and [Dial] return one. Any goroutines may call its methods at the same time;
// one Read returns each datagram.
//
// A datagram may be lost, and is lost if its receiver has no room for it. No write waits for
// that room, or fails for want of it: Stats counts what was lost. A datagram that arrives is
// whole. Datagrams from one sender to one address do not overtake each other. Those to different
// addresses may: the first to each waits until the PacketConn has found its receiver.
//
// Errors are *net.OpError, as package net's are. With errors.Is: os.ErrDeadlineExceeded when a
// deadline has passed; net.ErrClosed after Close; syscall.EMSGSIZE for a datagram of more than
// MaxMessage bytes; syscall.EINVAL for an address that is not of an IP network; *net.AddrError for
// an IPv6 address if the PacketConn listens at an IPv4 address, and the other way round;
// net.ErrWriteToConnected for WriteTo on a PacketConn that was dialed, and syscall.EDESTADDRREQ for
// Write, and for a [Message] without Addr, on one that was not.
//
// If datagrams written on a PacketConn that was dialed do not reach their receiver, and it knows
// why, one of the next calls fails: with syscall.ECONNREFUSED if there was no receiver; with an
// error that wraps that if the receiver refused the sender and gave a reason, that it
// has no memory for another, for example; with syscall.EHOSTUNREACH if no answer came within five
// seconds. All calls fail with syscall.ENETDOWN once the device of a PacketConn that listens at one
// address has been removed; one that listens at all addresses goes on with the other devices, and
// with new ones.
type PacketConn struct {
	endpoint ud.Endpoint
	limits   ud.Limits
	local    net.Addr
	port     uint16
	remote   netip.AddrPort // of a PacketConn that was dialed
	peerAddr net.Addr       // the same, or nil

	readDeadline  *deadline.Deadline
	writeDeadline *deadline.Deadline
	closed        chan struct{}
	nextError     atomic.Pointer[error] // of one that was dialed: the error of the next call
	failure       atomic.Pointer[error] // once the device has been removed: the error of all calls

	reader   reader
	sender   sender
	counters counters
}

var (
	_ net.PacketConn = (*PacketConn)(nil)
	_ net.Conn       = (*PacketConn)(nil)
)

// options are the parameters of newPacketConn.
type options struct {
	local  netip.AddrPort // as for [ud.Fabric].ListenPacket
	remote netip.AddrPort // valid for one that is dialed
}

// newPacketConn returns a PacketConn on a fabric.
func newPacketConn(f ud.Fabric, o options) (*PacketConn, error) {
	c := &PacketConn{
		readDeadline:  deadline.New(),
		writeDeadline: deadline.New(),
		closed:        make(chan struct{}),
	}
	if o.remote.IsValid() {
		c.remote = fabric.Plain(o.remote)
		c.peerAddr = addrOf(c.remote)
	}
	c.reader.init()
	c.sender.init()
	ep, err := f.ListenPacket(o.local, ud.Options{
		RecvQueue: recvQueue(0),
		Filter:    c.filter,
		Notify:    c.reader.notify,
		Lost:      c.fail,
	})
	if err != nil {
		return nil, err
	}
	c.endpoint, c.limits = ep, ep.Limits()
	c.local, c.port = addrOf(ep.LocalAddr()), ep.LocalAddr().Port()
	return c, nil
}

// LocalAddr returns the address of this end, an [Addr]. A PacketConn that listens at all
// addresses of the host has the unspecified one.
func (c *PacketConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address that a PacketConn was dialed to, or nil.
func (c *PacketConn) RemoteAddr() net.Addr { return c.peerAddr }

// MaxMessage returns how many bytes a datagram may have: as many as fit the MTUs
// of all of c's devices. A datagram that c receives from a group may have more, if the
// sender's device has a larger MTU.
func (c *PacketConn) MaxMessage() int { return c.limits.MaxMessage }

// SetDeadline sets the deadlines of reading and writing.
func (c *PacketConn) SetDeadline(t time.Time) error {
	return c.setDeadline(t, c.readDeadline, c.writeDeadline)
}

// SetReadDeadline makes reads fail with os.ErrDeadlineExceeded from t on, those under
// way included. The zero time means never.
func (c *PacketConn) SetReadDeadline(t time.Time) error { return c.setDeadline(t, c.readDeadline) }

// SetWriteDeadline makes writes fail with os.ErrDeadlineExceeded from t on, those under
// way not included. The zero time means never.
func (c *PacketConn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, c.writeDeadline) }

func (c *PacketConn) setDeadline(t time.Time, ds ...*deadline.Deadline) error {
	if c.isClosed() {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range ds {
		d.Set(t)
	}
	return nil
}

// SetReadBuffer sets how many bytes of datagrams wait to be read, each of which counts
// as 4 KiB: 32 MiB at most, 8192 datagrams. 0 and less stand for the default, 1 MiB,
// which is 256. It is rounded to what the network has.
//
// Each port of a device has one read buffer, and the size applies only if c has not sent or
// received a datagram there yet.
func (c *PacketConn) SetReadBuffer(bytes int) error {
	if c.isClosed() {
		return c.opError("set", net.ErrClosed)
	}
	c.endpoint.SetRecvQueue(recvQueue(bytes))
	return nil
}

// recvQueue returns how many datagrams a read buffer of the given size has room for.
func recvQueue(bytes int) int {
	const each = 4 << 10 // the largest MTU of InfiniBand
	if bytes <= 0 {
		bytes = 1 << 20
	}
	return max(bytes/each, 1)
}

// SetWriteBuffer does nothing: written datagrams wait only while c looks for their
// receivers, 1 MiB of them at most.
func (c *PacketConn) SetWriteBuffer(int) error {
	if c.isClosed() {
		return c.opError("set", net.ErrClosed)
	}
	return nil
}

// closeWithin is how long Close waits, at most, for receivers that c is looking for.
const closeWithin = time.Second

// Close ends the PacketConn. Calls under way return net.ErrClosed, and datagrams that have arrived
// unread are lost. If c is still looking for the receivers of written datagrams, Close waits
// for that, a second at most. It also waits, as long at most, until the senders to
// c know, so that what they send from then on goes to the next PacketConn with its address.
func (c *PacketConn) Close() error {
	if !c.setClosed() {
		return c.opError("close", net.ErrClosed)
	}
	c.sender.finish()
	err := c.endpoint.Close()
	c.reader.turn <- struct{}{} // for ever: calls under way have counted what they have read
	c.readDeadline.Set(time.Time{})
	c.writeDeadline.Set(time.Time{})
	return c.opError("close", err)
}

// setClosed makes all calls fail, those under way included. It returns false if it has been called
// before.
func (c *PacketConn) setClosed() bool {
	c.sender.mu.Lock() // no write is under way
	defer c.sender.mu.Unlock()
	if c.isClosed() {
		return false
	}
	close(c.closed)
	return true
}

func (c *PacketConn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// callError returns why a call with a deadline has to fail, or nil. It takes the error in
// nextError.
func (c *PacketConn) callError(d *deadline.Deadline) error {
	switch {
	case c.isClosed():
		return net.ErrClosed
	case d.Expired():
		return os.ErrDeadlineExceeded
	case c.failure.Load() != nil:
		return *c.failure.Load()
	}
	if c.nextError.Load() != nil {
		if err := c.nextError.Swap(nil); err != nil {
			return *err
		}
	}
	return nil
}

// fail makes all calls fail with ENETDOWN, those under way included. The fabric calls it when
// the device has been removed.
func (c *PacketConn) fail(err error) {
	err = fmt.Errorf("%w (%w)", syscall.ENETDOWN, err)
	c.failure.Store(&err)
	c.wake()
}

// opError wraps the error of an operation as package net does.
func (c *PacketConn) opError(op string, err error) error { return c.opErrorAt(op, c.peerAddr, err) }

func (c *PacketConn) opErrorAt(op string, at net.Addr, err error) error {
	if err == nil {
		return nil
	}
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: networkName, Source: c.local, Addr: at, Err: err}
}

// tooLongError is the error of a datagram with more than MaxMessage bytes.
type tooLongError struct{ bytes, limit int }

func (e *tooLongError) Error() string {
	return fmt.Sprintf("message too long: %d bytes, at most %d", e.bytes, e.limit)
}

func (e *tooLongError) Unwrap() error { return syscall.EMSGSIZE }
