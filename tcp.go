package ringnet

import (
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/rconn"
)

// tcpConn is a connection of auto over TCP. It counts the bytes.
type tcpConn struct {
	*net.TCPConn
	counts *tcpCounts
	closed atomic.Bool
	gone   runtime.Cleanup
}

// tcpCounts has the counters of a connection. It does not refer to the connection, which can
// therefore be garbage-collected.
type tcpCounts struct {
	written, received atomic.Uint64
	over              atomic.Bool  // the connection has ended, and tcpBytes has settled
	rtt               atomic.Int64 // nanoseconds, set by Close
	ended             func(rconn.End)

	// How much of written and received the sums of tcpBytes contain. Guarded by
	// tcpBytes.mu.
	sent, got uint64
}

// newTCPConn returns a connection that counts its bytes from now on.
func newTCPConn(c *net.TCPConn, t *Trace, dialed bool) *tcpConn {
	counts := &tcpCounts{ended: t.opened(CloseEvent{
		Carrier: "tcp",
		Local:   c.LocalAddr(),
		Remote:  c.RemoteAddr(),
		Dialed:  dialed,
	})}
	tcpBytes.add(counts)
	return &tcpConn{
		TCPConn: c,
		counts:  counts,
		// The cleanup is for c, not for the tcpConn: a program may have c from NetConn.
		gone: runtime.AddCleanup(c, func(counts *tcpCounts) {
			go counts.end(rconn.End{Dropped: true})
		}, counts),
	}
}

// Carrier returns "tcp".
func (c *tcpConn) Carrier() string { return "tcp" }

// SyscallConn hides from package os that the descriptor is TCP's: it would have the kernel move
// bytes past the counters, where io.Copy can do so by ReadFrom.
func (c *tcpConn) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.TCPConn.SyscallConn()
	if err != nil {
		return nil, err
	}
	return struct{ syscall.RawConn }{raw}, nil
}

func (c *tcpConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.counts.read(int64(n))
	return n, err
}

func (c *tcpConn) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	c.counts.wrote(int64(n))
	return n, err
}

func (c *tcpConn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	n, err := bufs.WriteTo(c.TCPConn)
	c.counts.wrote(n)
	return n, err
}

func (c *tcpConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := c.TCPConn.ReadFrom(r)
	c.counts.wrote(n)
	return n, err
}

func (c *tcpConn) WriteTo(w io.Writer) (int64, error) {
	n, err := c.TCPConn.WriteTo(w)
	c.counts.read(n)
	return n, err
}

// Close closes the connection once, so that one call alone reports its error and its round-trip
// time.
func (c *tcpConn) Close() error {
	if c.closed.Swap(true) {
		return opError("close", "tcp", c.LocalAddr(), c.RemoteAddr(), net.ErrClosed)
	}
	c.gone.Stop()
	c.counts.rtt.Store(int64(roundTrip(c.TCPConn))) // not known after Close
	err := c.TCPConn.Close()
	c.counts.end(rconn.End{Err: err})
	return err
}

// Stats returns a snapshot of the connection's counters.
func (c *tcpConn) Stats() Stats {
	s := c.counts.stats()
	if rtt := roundTrip(c.TCPConn); rtt > 0 {
		s.RTT = rtt
	}
	return s
}

func (c *tcpCounts) wrote(n int64) {
	c.written.Add(uint64(n))
	c.late()
}

func (c *tcpCounts) read(n int64) {
	c.received.Add(uint64(n))
	c.late()
}

// late adds to tcpBytes what a call has counted only after Close.
func (c *tcpCounts) late() {
	if c.over.Load() {
		tcpBytes.settle(c)
	}
}

func (c *tcpCounts) stats() Stats {
	return Stats{
		BytesWritten:  c.written.Load(),
		BytesReceived: c.received.Load(),
		RTT:           time.Duration(c.rtt.Load()),
	}
}

// end adds the counts to tcpBytes and reports that the connection has ended. e has everything
// but the Stats.
func (c *tcpCounts) end(e rconn.End) {
	e.Stats = c.stats()
	tcpBytes.settle(c)
	c.ended(e)
}

// tcpBytes counts for the process.
var tcpBytes = tcpTotals{open: make(map[*tcpCounts]struct{})}

// tcpTotals adds up the bytes of connections, those that have ended included.
type tcpTotals struct {
	mu             sync.Mutex // guards what follows
	open           map[*tcpCounts]struct{}
	sent, received uint64 // of the connections that are not in open
}

func (t *tcpTotals) add(c *tcpCounts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[c] = struct{}{}
}

// settle removes a connection that has ended from open, and adds to the sums what it has
// counted and they do not contain yet.
func (t *tcpTotals) settle(c *tcpCounts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, c)
	c.over.Store(true) // before the loads: a call that counts later sees it and settles again
	sent, received := c.written.Load(), c.received.Load()
	t.sent += sent - c.sent
	t.received += received - c.got
	c.sent, c.got = sent, received
}

// sum returns how many bytes all connections have carried.
func (t *tcpTotals) sum() (sent, received uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sent, received = t.sent, t.received
	for c := range t.open {
		sent += c.written.Load()
		received += c.received.Load()
	}
	return sent, received
}
