package ringnet

import (
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/rconn"
)

// tcpConn is a connection of "auto" over TCP, whose bytes are counted.
type tcpConn struct {
	*net.TCPConn
	counts *tcpCounts
	closed atomic.Bool
	gone   runtime.Cleanup
}

// tcpCounts are those of a connection. They do not hold it.
type tcpCounts struct {
	written, received atomic.Uint64
	over              atomic.Bool  // tcpBytes has settled it
	rtt               atomic.Int64 // when it was closed
	ended             func(rconn.End)

	// What of written and received is in tcpBytes's sums. Guarded by tcpBytes.mu.
	sent, got uint64
}

// newTCPConn counts the bytes of a connection from now on.
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
		// Not when the tcpConn is garbage: its user may have got hold of c by NetConn.
		gone: runtime.AddCleanup(c, func(counts *tcpCounts) {
			go counts.end(rconn.End{Dropped: true})
		}, counts),
	}
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

// Close closes the connection once: of several at once, only the first would know its
// error and its round-trip time.
func (c *tcpConn) Close() error {
	if c.closed.Swap(true) {
		return &net.OpError{Op: "close", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: net.ErrClosed}
	}
	c.gone.Stop()
	c.counts.rtt.Store(int64(roundTrip(c.TCPConn))) // which is not known afterwards
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

// late has tcpBytes count what a call that Close has ended has only now counted.
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

// end tells that the connection has ended, and how but for its Stats.
func (c *tcpCounts) end(e rconn.End) {
	e.Stats = c.stats()
	tcpBytes.settle(c)
	c.ended(e)
}

// tcpBytes are those of the process.
var tcpBytes = tcpTotals{open: make(map[*tcpCounts]struct{})}

type tcpTotals struct {
	mu             sync.Mutex
	open           map[*tcpCounts]struct{}
	sent, received uint64 // of those that are not open any more
}

func (t *tcpTotals) add(c *tcpCounts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[c] = struct{}{}
}

// settle has the sums count a connection that has ended, and what it has counted since
// they last did.
func (t *tcpTotals) settle(c *tcpCounts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, c)
	c.over.Store(true) // first: whoever counts later sees it
	sent, received := c.written.Load(), c.received.Load()
	t.sent += sent - c.sent
	t.received += received - c.got
	c.sent, c.got = sent, received
}

// sum is what all connections have carried.
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
