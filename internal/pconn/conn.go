// Package pconn gives a queue pair for datagrams the methods of a net.PacketConn, and,
// dialed, of a net.Conn, and a few more of package net's UDPConn, with its errors. A fabric
// moves the datagrams. docs/migrate.md lists what differs from a UDPConn.
// Programs know [Conn], [Message] and [Stats] as types of package ringnet.
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
)

// Conn sends and receives datagrams. Any goroutines may call its methods at the same time;
// one Read returns each datagram. The comment of ringnet.PacketConn has its errors, and when a
// datagram is lost.
type Conn struct {
	endpoint fabric.DatagramEndpoint
	waiter   fabric.DatagramWaiter // the endpoint, if calls wait on it
	limits   fabric.DatagramLimits
	network  string
	addr     func(netip.AddrPort) net.Addr // how methods return addresses
	local    net.Addr
	port     uint16
	remote   netip.AddrPort // of a Conn that was dialed
	peerAddr net.Addr       // the same, or nil

	readDeadline  *deadline.Deadline
	writeDeadline *deadline.Deadline
	closed        chan struct{}
	nextError     atomic.Pointer[error] // of a dialed Conn: the error of the next call
	failure       atomic.Pointer[error] // once the device has been removed: the error of all calls

	reader   reader
	sender   sender
	counters counters
}

var (
	_ net.PacketConn = (*Conn)(nil)
	_ net.Conn       = (*Conn)(nil)
)

// Options are the parameters of [Listen].
type Options struct {
	Network string                        // the name that errors have, and addresses unless Addr makes them
	Addr    func(netip.AddrPort) net.Addr // nil: a fabric.Addr
	Local   netip.AddrPort                // as for [fabric.Datagrams].ListenPacket
	Remote  netip.AddrPort                // valid for one that is dialed
}

// Listen returns a Conn on a fabric.
func Listen(f fabric.Datagrams, o Options) (*Conn, error) {
	c := &Conn{
		network:       o.Network,
		addr:          o.Addr,
		readDeadline:  deadline.New(),
		writeDeadline: deadline.New(),
		closed:        make(chan struct{}),
	}
	if c.addr == nil {
		c.addr = func(a netip.AddrPort) net.Addr { return fabric.NewAddr(o.Network, a) }
	}
	if o.Remote.IsValid() {
		c.remote = fabric.Plain(o.Remote)
		c.peerAddr = c.addr(c.remote)
	}
	c.reader.init()
	c.sender.init()
	ep, err := f.ListenPacket(o.Local, fabric.DatagramOptions{
		RecvQueue: recvQueue(0),
		Filter:    c.filter,
		Notify:    c.reader.notify,
		Remote:    c.remote,
		Failed:    c.failNextCall,
		Lost:      c.fail,
	})
	if err != nil {
		return nil, err
	}
	c.endpoint, c.limits = ep, ep.DatagramLimits()
	c.waiter, _ = ep.(fabric.DatagramWaiter)
	c.local, c.port = c.addr(ep.LocalAddr()), ep.LocalAddr().Port()
	c.enlist()
	return c, nil
}

// LocalAddr returns the address of this end: a [fabric.Addr], or on auto-udp a *net.UDPAddr. A Conn that listens at all
// addresses of the host has the unspecified one.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address that a Conn was dialed to, or nil.
func (c *Conn) RemoteAddr() net.Addr { return c.peerAddr }

// MaxMessage returns how many bytes a datagram may have: over rdma as many as fit the MTUs
// of all of c's devices. A datagram that c receives from a group may have more, if the
// sender's device has a larger MTU.
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
// Over rdma each port of a device has one read buffer, and the size applies only if c has
// not sent or received a datagram there yet. Over shm each sender has one, and the size
// applies to those that send to c for the first time afterwards. It takes that much of this
// process's memory (SetMemoryLimit of package ringnet), however little the sender sends,
// until the sender is closed, or has sent to 256 other addresses since, and c has read all
// from it. When memory is short, new senders take that of the senders to c that have been
// silent for longest and from which c has read all; connections do not.
func (c *Conn) SetReadBuffer(bytes int) error {
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
func (c *Conn) SetWriteBuffer(int) error {
	if c.isClosed() {
		return c.opError("set", net.ErrClosed)
	}
	return nil
}

// closeWithin is how long Close waits, at most, for receivers that c is looking for.
const closeWithin = time.Second

// Close ends the Conn. Calls under way return net.ErrClosed, and datagrams that have arrived
// unread are lost. If c is still looking for the receivers of written datagrams, Close waits
// for that, a second at most. Over rdma it also waits, as long at most, until the senders to
// c know, so that what they send from then on goes to the next Conn with its address.
func (c *Conn) Close() error {
	if !c.setClosed() {
		return c.opError("close", net.ErrClosed)
	}
	c.sender.finish()
	err := c.endpoint.Close()
	c.reader.turn <- struct{}{} // for ever: calls under way have counted what they have read
	c.delist()
	c.readDeadline.Set(time.Time{})
	c.writeDeadline.Set(time.Time{})
	return c.opError("close", err)
}

// setClosed makes all calls fail, those under way included. It returns false if it has been called
// before.
func (c *Conn) setClosed() bool {
	c.sender.mu.Lock() // no write is under way
	defer c.sender.mu.Unlock()
	if c.isClosed() {
		return false
	}
	close(c.closed)
	return true
}

func (c *Conn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// callError returns why a call with a deadline has to fail, or nil. It takes the error in
// nextError.
func (c *Conn) callError(d *deadline.Deadline) error {
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
func (c *Conn) fail(err error) {
	err = fmt.Errorf("%w (%w)", syscall.ENETDOWN, err)
	c.failure.Store(&err)
	c.wake()
}

// opError wraps the error of an operation as package net does.
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

// tooLongError is the error of a datagram with more than MaxMessage bytes.
type tooLongError struct{ bytes, limit int }

func (e *tooLongError) Error() string {
	return fmt.Sprintf("message too long: %d bytes, at most %d", e.bytes, e.limit)
}

func (e *tooLongError) Unwrap() error { return syscall.EMSGSIZE }

// The header of fabrics' datagrams is package wire's.
var _ = [1]struct{}{}[fabric.HeaderSize-wire.DatagramHeaderSize]
