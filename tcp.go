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
	close  sync.Once
	gone   runtime.Cleanup
}

// tcpCounts are those of a connection. They do not hold it.
type tcpCounts struct {
	written, received atomic.Uint64
	rtt               atomic.Int64 // when it was closed
	ended             func(rconn.End)
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
	c.counts.received.Add(uint64(n))
	return n, err
}

func (c *tcpConn) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	c.counts.written.Add(uint64(n))
	return n, err
}

func (c *tcpConn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	n, err := bufs.WriteTo(c.TCPConn)
	c.counts.written.Add(uint64(n))
	return n, err
}

func (c *tcpConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := c.TCPConn.ReadFrom(r)
	c.counts.written.Add(uint64(n))
	return n, err
}

func (c *tcpConn) WriteTo(w io.Writer) (int64, error) {
	n, err := c.TCPConn.WriteTo(w)
	c.counts.received.Add(uint64(n))
	return n, err
}

func (c *tcpConn) Close() error {
	rtt := roundTrip(c.TCPConn) // which is not known afterwards
	err := c.TCPConn.Close()
	c.close.Do(func() {
		c.gone.Stop()
		c.counts.rtt.Store(int64(rtt))
		c.counts.end(rconn.End{Err: err})
	})
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
	tcpBytes.drop(c)
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

func (t *tcpTotals) drop(c *tcpCounts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, c)
	t.sent += c.written.Load()
	t.received += c.received.Load()
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
