package auto

// A connection of auto that TCP carries, and its counters.

import (
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/rconn"
)

// TCPConn is a connection of auto over TCP. It counts the bytes.
type TCPConn struct {
	*net.TCPConn
	counts *tcpCounts
	closed atomic.Bool
	gone   runtime.Cleanup
}

// tcpCounts has the counters of a connection. It does not refer to the connection, which can
// therefore be garbage-collected.
type tcpCounts struct {
	written, received atomic.Uint64
	rtt               atomic.Int64 // nanoseconds, set by Close
	ended             func(rconn.End)
}

// tcpWritten and tcpReceived count for the process.
var tcpWritten, tcpReceived atomic.Uint64

// TCPBytes returns how many bytes all connections of this process over TCP have carried.
func TCPBytes() (sent, received uint64) { return tcpWritten.Load(), tcpReceived.Load() }

// NewTCPConn returns a connection that counts its bytes from now on. ended is called once, when it
// is closed or garbage-collected.
func NewTCPConn(c *net.TCPConn, ended func(rconn.End)) *TCPConn {
	counts := &tcpCounts{ended: ended}
	return &TCPConn{
		TCPConn: c,
		counts:  counts,
		// The cleanup is for c, not for the TCPConn: a program may have c from NetConn.
		gone: runtime.AddCleanup(c, func(counts *tcpCounts) {
			go counts.end(rconn.End{Dropped: true})
		}, counts),
	}
}

// Carrier returns "tcp".
func (c *TCPConn) Carrier() string { return "tcp" }

// PeerUser returns false: TCP does not tell.
func (c *TCPConn) PeerUser() (uid uint32, known bool) { return 0, false }

// SyscallConn hides from package os that the descriptor is TCP's: it would have the kernel move
// bytes past the counters, where io.Copy can do so by ReadFrom.
func (c *TCPConn) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.TCPConn.SyscallConn()
	if err != nil {
		return nil, err
	}
	return struct{ syscall.RawConn }{raw}, nil
}

func (c *TCPConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.counts.read(int64(n))
	return n, err
}

func (c *TCPConn) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	c.counts.wrote(int64(n))
	return n, err
}

func (c *TCPConn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	n, err := bufs.WriteTo(c.TCPConn)
	c.counts.wrote(n)
	return n, err
}

func (c *TCPConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := c.TCPConn.ReadFrom(r)
	c.counts.wrote(n)
	return n, err
}

func (c *TCPConn) WriteTo(w io.Writer) (int64, error) {
	n, err := c.TCPConn.WriteTo(w)
	c.counts.read(n)
	return n, err
}

// Close closes the connection once, so that one call alone reports its error and its round-trip
// time.
func (c *TCPConn) Close() error {
	if c.closed.Swap(true) {
		return &net.OpError{Op: "close", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: net.ErrClosed}
	}
	c.gone.Stop()
	c.counts.rtt.Store(int64(roundTrip(c.TCPConn))) // not known after Close
	err := c.TCPConn.Close()
	c.counts.end(rconn.End{Err: err})
	return err
}

// Stats returns a snapshot of the connection's counters.
func (c *TCPConn) Stats() rconn.Stats {
	s := c.counts.stats()
	if rtt := roundTrip(c.TCPConn); rtt > 0 {
		s.RTT = rtt
	}
	return s
}

func (c *tcpCounts) wrote(n int64) {
	c.written.Add(uint64(n))
	tcpWritten.Add(uint64(n))
}

func (c *tcpCounts) read(n int64) {
	c.received.Add(uint64(n))
	tcpReceived.Add(uint64(n))
}

func (c *tcpCounts) stats() rconn.Stats {
	return rconn.Stats{
		BytesWritten:  c.written.Load(),
		BytesReceived: c.received.Load(),
		RTT:           time.Duration(c.rtt.Load()),
	}
}

// end reports that the connection has ended. e has everything but the Stats.
func (c *tcpCounts) end(e rconn.End) {
	e.Stats = c.stats()
	c.ended(e)
}
