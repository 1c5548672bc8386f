package ringnet

// AutoConn, a connection that shm, rdma or TCP carries.

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/copying"
	"github.com/ringnet/ringnet/internal/transport"
)

// AutoConn is a connection of the network "auto": Dial and Accept return an *AutoConn there.
// So does Dial where [Dialer].ForTCP stands for "tcp", whatever network that is.
//
// It has all methods of a *net.TCPConn, and where TCP carries it they do the same. Over shm and
// rdma they do what [Conn] documents: SetNoDelay, SetKeepAlive, SetKeepAlivePeriod,
// SetKeepAliveConfig, SetReadBuffer and SetWriteBuffer do nothing there, File fails, and
// SyscallConn serves to ask whether the connection is alive: see [rconn.Conn.SyscallConn]. For
// other methods of *Conn, such as Peek, assert the type of what NetConn returns.
//
// Its methods may be called by several goroutines at once. Errors are those of the connection
// that carries it: *net.OpError, or a bare io.EOF.
type AutoConn struct {
	carrier       transport.Conn // a *Conn or an *auto.TCPConn
	local, remote net.Addr       // *net.TCPAddr
	passedOver    []Reason
}

var _ syscall.Conn = (*AutoConn)(nil)

func newAutoConn(s transport.Conn, passedOver []Reason) *AutoConn {
	notePassedOver(s, passedOver)
	return &AutoConn{s, tcpAddr(s.LocalAddr()), tcpAddr(s.RemoteAddr()), passedOver}
}

// tcpAddr returns an address as one of package net.
func tcpAddr(a net.Addr) net.Addr {
	if a, ok := a.(Addr); ok {
		return net.TCPAddrFromAddrPort(a.AddrPort())
	}
	return a
}

// Carrier returns the name of the network that carries c: "shm", "rdma" or "tcp".
func (c *AutoConn) Carrier() string { return c.carrier.Carrier() }

// LocalAddr returns the address of this end: a *net.TCPAddr, whatever network carries c, for
// programs look into it for the IP address, and take another type for no address at all.
func (c *AutoConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address of the other end: a *net.TCPAddr, as LocalAddr does.
func (c *AutoConn) RemoteAddr() net.Addr { return c.remote }

// Read waits until bytes have arrived, until the read deadline at most, and reads into p as many as
// there are: see [rconn.Conn.Read].
func (c *AutoConn) Read(p []byte) (int, error) { return c.carrier.Read(p) }

// Write writes p. It waits until there is room for all of it, until the write deadline at most: see
// [rconn.Conn.Write].
func (c *AutoConn) Write(p []byte) (int, error) { return c.carrier.Write(p) }

// Close ends the connection. Over shm and rdma it delivers, or returns an error: see
// [rconn.Conn.Close].
func (c *AutoConn) Close() error { return c.carrier.Close() }

// CloseRead makes Read return io.EOF from now on: see [rconn.Conn.CloseRead].
func (c *AutoConn) CloseRead() error { return c.carrier.CloseRead() }

// CloseWrite ends the direction in which c writes: see [rconn.Conn.CloseWrite].
func (c *AutoConn) CloseWrite() error { return c.carrier.CloseWrite() }

// SetDeadline sets the deadlines of Read and Write.
func (c *AutoConn) SetDeadline(t time.Time) error { return c.carrier.SetDeadline(t) }

// SetReadDeadline makes Reads fail with os.ErrDeadlineExceeded from t on, also those that are
// waiting. The zero time means no deadline.
func (c *AutoConn) SetReadDeadline(t time.Time) error { return c.carrier.SetReadDeadline(t) }

// SetWriteDeadline makes Writes fail with os.ErrDeadlineExceeded from t on, also those that are
// waiting. The zero time means no deadline.
func (c *AutoConn) SetWriteDeadline(t time.Time) error { return c.carrier.SetWriteDeadline(t) }

// SetLinger sets what Close does with bytes that were not delivered: see [rconn.Conn.SetLinger].
func (c *AutoConn) SetLinger(sec int) error { return c.carrier.SetLinger(sec) }

// SetNoDelay sets whether TCP sends at once, which shm and rdma always do.
func (c *AutoConn) SetNoDelay(noDelay bool) error { return c.carrier.SetNoDelay(noDelay) }

// SetKeepAlive sets whether TCP probes the peer. Over shm and rdma it changes nothing: see
// [Config].KeepAlive.
func (c *AutoConn) SetKeepAlive(keepAlive bool) error { return c.carrier.SetKeepAlive(keepAlive) }

// SetKeepAlivePeriod sets how often TCP probes the peer: see [AutoConn.SetKeepAlive].
func (c *AutoConn) SetKeepAlivePeriod(d time.Duration) error { return c.carrier.SetKeepAlivePeriod(d) }

// SetKeepAliveConfig sets how TCP probes the peer: see [AutoConn.SetKeepAlive].
func (c *AutoConn) SetKeepAliveConfig(config net.KeepAliveConfig) error {
	return c.carrier.SetKeepAliveConfig(config)
}

// SetReadBuffer sets the size of TCP's read buffer. Over shm and rdma it changes nothing: see
// [Config].RecvBuffer.
func (c *AutoConn) SetReadBuffer(bytes int) error { return c.carrier.SetReadBuffer(bytes) }

// SetWriteBuffer sets the size of TCP's write buffer. Over shm and rdma it changes nothing: see
// [Config].SendBuffer.
func (c *AutoConn) SetWriteBuffer(bytes int) error { return c.carrier.SetWriteBuffer(bytes) }

// SyscallConn implements syscall.Conn. Over TCP it is that of the *net.TCPConn; [Stats] and
// [Totals] do not count what a program reads or writes by it. Over shm and rdma see
// [rconn.Conn.SyscallConn].
func (c *AutoConn) SyscallConn() (syscall.RawConn, error) { return c.carrier.SyscallConn() }

// File returns a copy of the descriptor of a connection over TCP, as that of a *net.TCPConn does.
// Over shm and rdma there is none: the error is errors.ErrUnsupported.
func (c *AutoConn) File() (*os.File, error) {
	if tcp, ok := c.carrier.(*auto.TCPConn); ok {
		return tcp.File()
	}
	return nil, opError("file", c.Carrier(), c.carrier.LocalAddr(), c.carrier.RemoteAddr(), errors.ErrUnsupported)
}

// MultipathTCP reports whether Multipath TCP carries c.
func (c *AutoConn) MultipathTCP() (bool, error) {
	if tcp, ok := c.carrier.(*auto.TCPConn); ok {
		return tcp.MultipathTCP()
	}
	return false, nil
}

// NetConn returns the connection that carries c: a *[Conn] or a *net.TCPConn. c still owns it.
// [Stats] and [Totals] do not count what a program reads from the *net.TCPConn or writes to it
// directly. If a program closes the *net.TCPConn directly, Totals and a [Trace] learn of it
// only when it is garbage-collected.
func (c *AutoConn) NetConn() net.Conn {
	if tcp, ok := c.carrier.(*auto.TCPConn); ok {
		return tcp.TCPConn
	}
	return c.carrier
}

// Stats returns a snapshot of the counters of the connection that carries c. It works after
// Close, too.
func (c *AutoConn) Stats() Stats { return c.carrier.Stats() }

// AwaitRead waits until a Read would not wait, as [rconn.Conn.AwaitRead] does, so that connections
// that wait need no buffer. Over TCP it does so on Unix systems; on others the error is
// errors.ErrUnsupported.
func (c *AutoConn) AwaitRead() error { return c.carrier.AwaitRead() }

// PeerUser returns the effective user ID of the peer's process over shm: see
// [rconn.Conn.PeerUser]. Over rdma and TCP known is false.
func (c *AutoConn) PeerUser() (uid uint32, known bool) { return c.carrier.PeerUser() }

// PassedOver answers the question "why am I not on RDMA?". It returns a reason for each network
// that is better than the one that carries the connection, the best network first. At the
// accepting end these are only the networks that this listener did not offer, since the dialer
// has made the choice. The caller must not change the slice.
func (c *AutoConn) PassedOver() []Reason { return c.passedOver }

// ReadFrom implements io.ReaderFrom: io.Copy to c calls it. It writes to c what it reads from
// r until io.EOF, and copies as few bytes as the connection that carries c can.
func (c *AutoConn) ReadFrom(r io.Reader) (int64, error) {
	if _, ok := c.carrier.(*Conn); ok || copying.HasDescriptor(r) {
		return c.carrier.ReadFrom(r)
	}
	n, err := copying.To(c.carrier, r)
	return n, opError("readfrom", "tcp", c.LocalAddr(), c.RemoteAddr(), err)
}

// WriteTo implements io.WriterTo: io.Copy from c calls it. It writes to w what it reads from c
// until io.EOF, and copies as few bytes as the connection that carries c can.
func (c *AutoConn) WriteTo(w io.Writer) (int64, error) {
	_, ok := c.carrier.(*Conn)
	if _, reads := w.(io.ReaderFrom); ok || reads || copying.HasDescriptor(w) {
		return c.carrier.WriteTo(w)
	}
	n, err := copying.From(w, c.carrier)
	return n, opError("writeto", "tcp", c.LocalAddr(), c.RemoteAddr(), err)
}

// WriteBuffers writes the buffers as one Write: see [rconn.Conn.WriteBuffers]. Over TCP it is
// [net.Buffers.WriteTo], which passes the buffers to the kernel in one system call where it
// can. bufs keeps what was not written, and the int64 is the number of bytes that were.
func (c *AutoConn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	return c.carrier.WriteBuffers(bufs)
}
