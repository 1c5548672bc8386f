// Package pconn gives a queue pair for datagrams the methods of a net.PacketConn, and,
// dialed, of a net.Conn, and a few more of package net's UDPConn, with its errors. What moves
// the datagrams is a fabric. docs/migrate.md lists what differs from a UDPConn.
//
// The package is used through package ringnet and promises no API before v1.
package pconn

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
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/rconn"
)

// Conn sends and receives datagrams. Its methods may be called at once from any
// goroutines; each datagram is for one Read.
//
// A datagram may be lost, and is if its receiver has no room for it. Nothing waits for
// that, and no error tells: [Conn.Stats] does. What arrives is whole. Datagrams from one
// sender to one address do not overtake each other. Those to different addresses may: the
// first to each waits until its receiver has been found.
//
// Errors are *net.OpError, as package net's are. With errors.Is:
// os.ErrDeadlineExceeded when a deadline has passed; net.ErrClosed after Close;
// syscall.EMSGSIZE for a datagram of more than [Conn.MaxMessage] bytes; syscall.EINVAL
// for an address that is none of an IP network, *net.AddrError for one of IPv6 where c
// listens at one of IPv4, and the other way round; net.ErrWriteToConnected for WriteTo on a
// Conn that was dialed, and syscall.EDESTADDRREQ for Write, and for a [Message] without
// Addr, on one that was not.
//
// Calls of one that was dialed fail once with what has kept the datagrams written before
// from their receiver, if that is known: syscall.ECONNREFUSED when nobody was there;
// *[rconn.RefusedError], which wraps that, with the words of a receiver that is there and
// has no memory for another sender, say; syscall.EHOSTUNREACH when there was no answer in
// five seconds. All calls fail with syscall.ENETDOWN when the device of a Conn that listens
// at one address has been removed; one that listens at all addresses goes on with the other
// devices, and with those that come.
type Conn struct {
	endpoint fabric.DatagramEndpoint
	limits   fabric.DatagramLimits
	network  string
	local    net.Addr
	port     uint16
	remote   netip.AddrPort // of a Conn that was dialed
	peerAddr net.Addr       // the same, or nil

	readDeadline  *deadline.Deadline
	writeDeadline *deadline.Deadline
	closed        chan struct{}
	refused       atomic.Pointer[error] // for the next call of a Conn that was dialed
	lost          atomic.Pointer[error] // for all calls: why nothing arrives any more

	reader   reader
	sender   sender
	counters counters
}

var (
	_ net.PacketConn = (*Conn)(nil)
	_ net.Conn       = (*Conn)(nil)
)

// Options are how a Conn begins.
type Options struct {
	Network    string         // the name that its addresses have
	Local      netip.AddrPort // as for [fabric.Datagrams].ListenPacket
	Remote     netip.AddrPort // valid for one that is dialed
	ReadBuffer int            // bytes: see [Conn.SetReadBuffer]; 0 means the default
}

// DefaultReadBuffer is how many bytes of datagrams wait to be read: see [Conn.SetReadBuffer].
const DefaultReadBuffer = 1 << 20

// Listen returns a Conn on a fabric.
func Listen(f fabric.Datagrams, o Options) (*Conn, error) {
	c := &Conn{
		network:       o.Network,
		readDeadline:  deadline.New(),
		writeDeadline: deadline.New(),
		closed:        make(chan struct{}),
	}
	if o.Remote.IsValid() {
		c.remote = fabric.Plain(o.Remote)
		c.peerAddr = rconn.NewAddr(o.Network, c.remote)
	}
	c.reader.init()
	c.sender.init()
	ep, err := f.ListenPacket(o.Local, fabric.DatagramOptions{
		RecvQueue: recvQueue(o.ReadBuffer),
		Filter:    c.filter,
		Notify:    c.reader.notify,
		Lost:      c.lose,
	})
	if err != nil {
		return nil, err
	}
	c.endpoint, c.limits = ep, ep.DatagramLimits()
	c.local, c.port = rconn.NewAddr(o.Network, ep.LocalAddr()), ep.LocalAddr().Port()
	c.enlist()
	return c, nil
}

// LocalAddr is the address of this end: an [rconn.Addr]. A Conn that listens at all
// addresses of the host has the unspecified one.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the address that a Conn was dialed to, or nil.
func (c *Conn) RemoteAddr() net.Addr { return c.peerAddr }

// MaxMessage is how many bytes a datagram may have: over rdma what the MTUs of all of c's
// devices have room for. To a group others may send more than that to c, by a device with a
// larger MTU.
func (c *Conn) MaxMessage() int { return c.limits.MaxMessage }

// SetDeadline sets the deadlines of reading and writing.
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadline(t, c.readDeadline, c.writeDeadline)
}

// SetReadDeadline makes reads fail with os.ErrDeadlineExceeded from t on, those under
// way included. The zero time means never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(t, c.readDeadline) }

// SetWriteDeadline makes writes fail with os.ErrDeadlineExceeded from t on, those under
// way not included. The zero time means never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, c.writeDeadline) }

func (c *Conn) setDeadline(t time.Time, ds ...*deadline.Deadline) error {
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
// Over rdma it is so many in all for each port of a device, and counts until c has sent or
// received a datagram. Over shm it is so many for each sender, of those that send for the
// first time from then on. Each has that much of this process's memory (SetMemoryLimit of
// package ringnet), however little it sends, until it is closed, or has sent to 256 other
// addresses since, and all has been read. Where memory is short, senders to c that have
// been silent for longest, and of which all has been read, make room for new ones, but not
// for connections.
func (c *Conn) SetReadBuffer(bytes int) error {
	if c.isClosed() {
		return c.opError("set", net.ErrClosed)
	}
	c.endpoint.SetRecvQueue(recvQueue(bytes))
	return nil
}

// recvQueue is how many datagrams wait in a read buffer.
func recvQueue(bytes int) int {
	const each = 4 << 10 // the largest MTU of InfiniBand
	if bytes <= 0 {
		bytes = DefaultReadBuffer
	}
	return max(bytes/each, 1)
}

// SetWriteBuffer does nothing: what is written has gone when Write returns.
func (c *Conn) SetWriteBuffer(int) error {
	if c.isClosed() {
		return c.opError("set", net.ErrClosed)
	}
	return nil
}

// closeWithin is how long Close waits for receivers to be found.
const closeWithin = time.Second

// Close ends the Conn. Calls under way return net.ErrClosed, and what has arrived
// unread is lost. What was written is on its way; if its receiver is still being looked
// for, Close waits for that, at most a second. Over rdma it waits as long for those who send
// to c to know, so that what they send from then on is for whoever has the address next.
func (c *Conn) Close() error {
	if !c.sender.end() {
		return c.opError("close", net.ErrClosed)
	}
	close(c.closed)
	c.sender.finish()
	err := c.endpoint.Close()
	c.reader.turn <- struct{}{} // for ever: who has read until now has counted
	c.delist()
	c.readDeadline.Set(time.Time{})
	c.writeDeadline.Set(time.Time{})
	return c.opError("close", err)
}

func (c *Conn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// obstacle is why a call with a deadline cannot go on.
func (c *Conn) obstacle(d *deadline.Deadline) error {
	switch {
	case c.isClosed():
		return net.ErrClosed
	case d.Expired():
		return os.ErrDeadlineExceeded
	case c.lost.Load() != nil:
		return *c.lost.Load()
	}
	if c.refused.Load() != nil {
		if err := c.refused.Swap(nil); err != nil {
			return *err
		}
	}
	return nil
}

// lose has the calls fail, those under way included: the device has gone for good.
func (c *Conn) lose(err error) {
	err = fmt.Errorf("%w (%w)", syscall.ENETDOWN, err)
	c.lost.Store(&err)
	c.reader.notify()
}

// opError wraps what went wrong in op as package net would.
func (c *Conn) opError(op string, err error) error { return c.opErrorAt(op, c.peerAddr, err) }

func (c *Conn) opErrorAt(op string, at net.Addr, err error) error {
	if err == nil {
		return nil
	}
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: c.network, Source: c.local, Addr: at, Err: err}
}

// tooLongError is that of a datagram with too many bytes.
type tooLongError struct{ bytes, most int }

func (e *tooLongError) Error() string {
	return fmt.Sprintf("message too long: %d bytes, at most %d", e.bytes, e.most)
}

func (e *tooLongError) Unwrap() error { return syscall.EMSGSIZE }

// The header of fabrics' datagrams is package wire's.
var _ = [1]struct{}{}[fabric.HeaderSize-wire.DatagramHeaderSize]
