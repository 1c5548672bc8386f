// Package rconn gives a stream on a link the methods of a net.Conn: Read, Write,
// half-closes, Close and deadlines as package net defines them, with its errors. Package
// internal/link moves the bytes. Programs get a [Conn] from package ringnet, which has the types of
// this package under its own name, too.
package rconn

import (
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/crossing"
	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/link"
)

// Conn is one end of a reliable byte stream over RDMA or shared memory. Its methods may be called
// by several goroutines at once. The comment of ringnet.Conn has its errors, and what becomes of it
// when the path or the peer is lost.
type Conn struct {
	stream        *link.Stream
	local, remote net.Addr
	readDeadline  *deadline.Deadline
	writeDeadline *deadline.Deadline

	mu     sync.Mutex // guards what follows
	closed bool
	linger time.Duration // what Close waits
	usual  time.Duration // Config.Linger, for SetLinger to go back to

	dropped runtime.Cleanup
	ended   func(End) // may be nil
}

var _ net.Conn = (*Conn)(nil)

// End describes a connection that has ended.
type End struct {
	Stats   Stats // all that it has counted
	Err     error // the error that Close has returned
	Dropped bool  // the program did not close it, and the garbage collector found it
}

// New makes a connection from a stream: package ringnet calls it for Dial and Accept. If ended is not nil, Close calls it before it returns;
// for a connection that is garbage-collected without Close it is called in a goroutine of its
// own. ended must not hold a reference to the connection.
func New(s *link.Stream, ended func(End)) *Conn {
	network := s.Link().Network()
	linger := s.Linger()
	c := &Conn{
		stream:        s,
		local:         NewAddr(network, s.LocalAddr()),
		remote:        NewAddr(network, s.RemoteAddr()),
		readDeadline:  deadline.New(),
		writeDeadline: deadline.New(),
		linger:        linger,
		usual:         linger,
		ended:         ended,
	}
	// A connection that is garbage is closed, as package net's are.
	c.dropped = runtime.AddCleanup(c, func(s *link.Stream) {
		go func() {
			err := s.Close(linger)
			if ended != nil {
				ended(End{Stats: Stats(s.Stats()), Err: err, Dropped: true})
			}
		}()
	}, s)
	return c
}

// Carrier returns the name of the network: "shm" or "rdma". Connections of "auto" have this
// method, too.
func (c *Conn) Carrier() string { return c.local.Network() }

// LocalAddr returns the address of this end: an [Addr].
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address of the other end: an [Addr].
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// PeerUser returns the effective user ID that the peer's process had when it connected, as the
// kernel tells it, over shm. known is false over rdma, and may be once the connection has ended.
func (c *Conn) PeerUser() (uid uint32, known bool) { return c.stream.Link().PeerUser() }

// Stats returns a snapshot of the connection's counters. It works after Close.
func (c *Conn) Stats() Stats { return Stats(c.stream.Stats()) }

// Link returns a snapshot of the link that carries the connection. It works after Close, and
// after the link has ended.
func (c *Conn) Link() LinkInfo { return LinkInfoOf(c.stream.Link().Info()) }

// Read waits until bytes have arrived, until the read deadline at most, and reads into p as many
// as there are. When all bytes that arrived have been read, it returns io.EOF if the peer has
// ended its stream, and another error if the connection has ended otherwise.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.stream.Read(p, c.readDeadline)
	crossing.Acquire()
	return n, c.opError("read", err)
}

// AwaitRead waits until a Read would not wait: bytes have arrived, or Read would return an
// error other than that of the deadline. So a program whose connections wait needs no buffers
// for them. If the read deadline passes first, the error is os.ErrDeadlineExceeded.
func (c *Conn) AwaitRead() error { return c.opError("read", c.stream.AwaitRead(c.readDeadline)) }

// Write writes p. It waits until the peer has room for all of it, until the write deadline at
// most. When Write returns nil, the bytes have room at the peer, and may still be on their way:
// Close waits for them. If Write fails, it returns how many bytes it has accepted; these are
// delivered unless the connection is lost.
func (c *Conn) Write(p []byte) (int, error) {
	crossing.Release()
	n, err := c.stream.Write(p, c.writeDeadline)
	return n, c.opError("write", err)
}

// WriteBuffers writes the buffers one behind the other, as one Write: no other Write comes
// between them, several small ones travel in one work request, and no further copy is made. It
// returns how many bytes it has accepted, and removes these from bufs, as
// [net.Buffers.WriteTo] does. It waits, fails and delivers as [Conn.Write] does. It may change
// the elements of bufs, but not the bytes, and keeps neither.
func (c *Conn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	crossing.Release()
	n, err := c.stream.WriteBuffers(bufs, c.writeDeadline)
	return n, c.opError("write", err)
}

// SetDeadline sets the deadlines of Read and Write. See [Conn.SetReadDeadline]
// and [Conn.SetWriteDeadline].
func (c *Conn) SetDeadline(t time.Time) error {
	return c.set(func() {
		c.readDeadline.Set(t)
		c.writeDeadline.Set(t)
	})
}

// SetReadDeadline makes Reads fail with os.ErrDeadlineExceeded from t on, also those that are
// waiting. Nothing is lost: with a later deadline, Read goes on where it was. The zero time
// means no deadline. After Close the error is net.ErrClosed.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.set(func() { c.readDeadline.Set(t) })
}

// SetWriteDeadline makes Writes fail with os.ErrDeadlineExceeded from t on, also those that are
// waiting. Such a Write returns how many bytes it has accepted. These arrive, and with a later
// deadline Writes go on behind them. The zero time means no deadline. After Close the error is
// net.ErrClosed.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.set(func() { c.writeDeadline.Set(t) })
}

// SetLinger sets what Close does with bytes that the peer's device has not taken. If sec is
// negative, Close waits for Config.Linger at most, which is the default; if sec is positive, for
// that many seconds at most. If sec is 0, Close does not wait: it discards the bytes, and the
// peer gets ECONNRESET.
func (c *Conn) SetLinger(sec int) error {
	return c.setOption(func() {
		c.linger = time.Duration(min(sec, math.MaxInt32)) * time.Second
		if sec < 0 {
			c.linger = c.usual
		}
	})
}

// set makes a change, or returns an error after Close. As with package net it names the local address
// alone, but setOption, for what TCP has alone, both.
func (c *Conn) set(change func()) error { return c.localError("set", c.ifOpen(change)) }

func (c *Conn) setOption(change func()) error { return c.opError("set", c.ifOpen(change)) }

// ifOpen calls change with mu held, unless Close was called.
func (c *Conn) ifOpen(change func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	change()
	return nil
}

// CloseWrite ends the direction in which c writes: the peer reads the bytes that Write has
// accepted and then io.EOF. CloseWrite does not wait, and c can still be read. A process that exits
// has to call Close first. Once the connection is lost, or both ends have ended their directions, the
// error is ENOTCONN, as it is TCP's.
func (c *Conn) CloseWrite() error { return c.halfError(c.stream.CloseWrite()) }

// CloseRead makes Read return io.EOF from now on. Bytes that have arrived unread, and those that
// still arrive, are dropped, so that the peer can go on writing. It fails as CloseWrite does.
func (c *Conn) CloseRead() error { return c.halfError(c.stream.CloseRead()) }

// halfError is opError of a half-close.
func (c *Conn) halfError(err error) error { return c.wrap("close", "shutdown", c.local, c.remote, err) }

// Close ends the connection. Calls under way return net.ErrClosed. Close sends the bytes that
// Write has accepted and the end of the stream, and waits until the peer's device has taken
// all of that, for the linger time at most. So a program may write, close and exit. Close does
// not wait for the peer's application. If bytes have arrived that were not read, the peer reads
// ECONNRESET instead of io.EOF behind the bytes that were written.
//
// Close delivers, or returns an error: ETIMEDOUT when the linger time was too short. If a Close of
// another connection on the same link has waited in vain, that time counts for this one. If the
// connection was lost before, or the peer has reset it, the error is that of a Write, unless a call
// has returned that, or the peer is known to have read all that was written, as it is when it has
// closed: docs/reliability.md has the cases. After SetLinger(0) Close returns nil. A second Close
// returns net.ErrClosed.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	linger := c.linger
	c.mu.Unlock()
	c.dropped.Stop()
	err := c.opError("close", c.stream.Close(linger))
	c.readDeadline.Set(time.Time{})
	c.writeDeadline.Set(time.Time{})
	if c.ended != nil {
		c.ended(End{Stats: c.Stats(), Err: err})
	}
	return err
}

// opError wraps what went wrong in op as package net would.
func (c *Conn) opError(op string, err error) error { return c.wrap(op, op, c.local, c.remote, err) }

// localError is opError of an operation on this end alone, which package net names by its address.
func (c *Conn) localError(op string, err error) error { return c.wrap(op, op, nil, c.local, err) }

// wrap is opError, with the name of the system call that TCP would make, and the addresses.
func (c *Conn) wrap(op, call string, source, addr net.Addr, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(call, errno)
	}
	return &net.OpError{Op: op, Net: c.local.Network(), Source: source, Addr: addr, Err: err}
}
