// Package rconn gives a stream on a link the methods of a net.Conn: Read, Write,
// half-closes, Close and deadlines as package net defines them, with its errors. It has
// the configuration, the counters and the addresses of connections too. Package
// internal/link moves the bytes.
//
// Programs get connections from package ringnet, which has the types of this package under
// the same names: ringnet.Conn is [Conn], ringnet.Config is [Config], and so on. They
// import rconn only to find an error's type with errors.As: [ProtocolError] or
// [RefusedError]. [Client], [Server], [New] and [NewLinkInfo] take types of internal
// packages, so only this module can call them; a fabric's tests do.
//
// The package promises no API before v1.
package rconn

import (
	"context"
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
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
)

// Conn is one end of a reliable byte stream over RDMA. Its methods may be called
// at once from any goroutines; concurrent Writes do not mix their bytes, and
// concurrent Reads each get a piece of their own.
//
// Errors other than io.EOF are *net.OpError, as package net's are. With
// errors.Is: os.ErrDeadlineExceeded when a deadline has passed; net.ErrClosed
// after Close; syscall.EPIPE when writing after CloseWrite or to a peer that has
// closed; syscall.ECONNRESET when the peer is gone without having said so, or
// has closed with bytes of ours unread; syscall.ENETDOWN when this side's device
// is gone; syscall.ETIMEDOUT when the peer's
// device does not answer; syscall.EPROTO when the peer breaks the protocol.
// A path or a device that is lost is waited for first: [Config.ResumeTimeout].
//
// A peer whose process is stopped is not given up, for its device answers, and
// nothing is lost when it goes on. Until then Reads and Writes wait; deadlines
// bound that.
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

// Client makes a connection, with a link of its own, of an endpoint that was
// dialed. It takes the endpoint over, and closes it if it fails. The network
// names the connection's addresses. It ends early when ctx does, and after
// Config.HandshakeTimeout.
func Client(ctx context.Context, network string, ep fabric.Endpoint, cfg *Config) (*Conn, error) {
	return connect(ctx, network, ep, cfg, link.Dial)
}

// Server makes a connection of an endpoint that a listener accepted, as Client
// does on the other side.
func Server(ctx context.Context, network string, ep fabric.Endpoint, cfg *Config) (*Conn, error) {
	return connect(ctx, network, ep, cfg, func(ctx context.Context, ep fabric.Endpoint, cfg link.Config) (*link.Stream, error) {
		_, s, err := link.Accept(ctx, ep, cfg)
		return s, err
	})
}

func connect(ctx context.Context, network string, ep fabric.Endpoint, cfg *Config,
	make func(context.Context, fabric.Endpoint, link.Config) (*link.Stream, error)) (*Conn, error) {
	own, err := cfg.Link()
	if err != nil {
		_ = ep.Close()
		return nil, err
	}
	own.Network = network
	own.Shared, own.Idle = false, 0
	s, err := make(ctx, ep, own)
	if err != nil {
		return nil, err
	}
	return New(network, s, cfg, nil), nil
}

// New makes a connection of a stream. ended, unless it is nil, is called once, in the
// goroutine that has closed the connection before Close returns, or in one of its own.
// It must not hold the connection.
func New(network string, s *link.Stream, cfg *Config, ended func(End)) *Conn {
	d, _ := cfg.withDefaults()
	c := &Conn{
		stream:        s,
		local:         NewAddr(network, s.LocalAddr()),
		remote:        NewAddr(network, s.RemoteAddr()),
		readDeadline:  deadline.New(),
		writeDeadline: deadline.New(),
		linger:        d.Linger,
		usual:         d.Linger,
		ended:         ended,
	}
	// A connection that is garbage is closed, as package net's are.
	c.dropped = runtime.AddCleanup(c, func(s *link.Stream) {
		go func() {
			err := s.Close(d.Linger)
			if ended != nil {
				ended(End{Stats: statsOf(s), Err: err, Dropped: true})
			}
		}()
	}, s)
	return c
}

// LocalAddr is the address of this end: an [Addr].
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the address of the other end: an [Addr].
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// Read reads into p what has arrived, at least one byte, waiting for it until
// the read deadline. It returns io.EOF when the peer has ended its
// stream, and, once everything that arrived has been read, the reason why
// otherwise no more will come. p is the caller's again when Read returns.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.stream.Read(p, c.readDeadline)
	crossing.Acquire()
	if err != nil {
		return n, c.opError("read", err)
	}
	return n, nil
}

// AwaitRead waits until a Read would not wait: something has arrived, the stream
// has ended or is lost, or c is closed, which Read then returns. So a program with
// many connections that wait needs no buffer for them. It returns
// os.ErrDeadlineExceeded when the read deadline has passed.
func (c *Conn) AwaitRead() error { return c.opError("read", c.stream.AwaitRead(c.readDeadline)) }

// Write writes p, waiting until the peer has room for all of it or the write
// deadline has passed. If it fails it returns how many bytes it accepted before;
// those are delivered unless the connection is lost. p is the caller's again
// when Write returns. When Write returns nil, the bytes have their place
// at the peer, and need not be there yet: Close waits for that.
func (c *Conn) Write(p []byte) (int, error) {
	crossing.Release()
	n, err := c.stream.Write(p, c.writeDeadline)
	if err != nil {
		return n, c.opError("write", err)
	}
	return n, nil
}

// SetDeadline sets the deadlines of Read and Write. See [Conn.SetReadDeadline]
// and [Conn.SetWriteDeadline].
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadline(t, c.readDeadline, c.writeDeadline)
}

// SetReadDeadline makes Reads fail with os.ErrDeadlineExceeded from t on, those
// under way included. Nothing is lost: once the deadline is moved, Read goes on
// where it was. The zero time means never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(t, c.readDeadline) }

// SetWriteDeadline makes Writes fail with os.ErrDeadlineExceeded from t on,
// those under way included. Such a Write returns how many bytes it accepted; those
// arrive, and once the deadline is moved, Writes go on behind them. The zero
// time means never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, c.writeDeadline) }

func (c *Conn) setDeadline(t time.Time, ds ...*deadline.Deadline) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range ds {
		d.Set(t)
	}
	return nil
}

// SetLinger sets what Close does with bytes that the peer's device has not taken: if sec
// is negative, Close waits at most Config.Linger, the default; if it is positive, at most
// that many seconds; if it is 0, Close does not wait and discards them, so that the peer
// gets ECONNRESET.
func (c *Conn) SetLinger(sec int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	c.linger = time.Duration(min(sec, math.MaxInt32)) * time.Second
	if sec < 0 {
		c.linger = c.usual
	}
	return nil
}

// CloseWrite ends the direction in which c writes: the peer reads what was accepted and
// then io.EOF. It does not wait, and reading goes on.
func (c *Conn) CloseWrite() error { return c.opError("close", c.stream.CloseWrite()) }

// CloseRead makes Read return io.EOF, now and always. What has arrived unread
// and what still arrives is dropped, so that the peer can go on writing.
func (c *Conn) CloseRead() error { return c.opError("close", c.stream.CloseRead()) }

// Close ends the connection. Calls under way return net.ErrClosed. It sends
// what Write has accepted and the end of the stream, and waits until the
// peer's device has taken all of that, at most the linger time: so a program
// may write, close and exit. What the peer's application does makes no
// difference. If bytes have arrived that were not read, the peer gets the bytes that
// were written, and then ECONNRESET instead of io.EOF.
//
// Close returns an error if the bytes could not be delivered: ETIMEDOUT when
// the linger time was too short. The time that another connection on the link
// has waited for a peer that is stopped counts. Close returns nil if the
// peer has closed already, or if the connection had been lost before.
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
func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: c.local.Network(), Source: c.local, Addr: c.remote, Err: err}
}
