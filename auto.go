package ringnet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/ringnet/ringnet/internal/copying"
)

// AutoConn is a connection of the network "auto": Dial and Accept return an *AutoConn there.
// LocalAddr().Network() tells which network carries it: "shm", "rdma" or "tcp".
//
// Besides the methods below it has all methods of net.Conn, and CloseRead, CloseWrite and
// SetLinger. They do what [Conn] documents or, over TCP, what a *net.TCPConn does. SetNoDelay,
// SetKeepAlive, SetKeepAlivePeriod, SetKeepAliveConfig, SetReadBuffer and SetWriteBuffer act
// on TCP, and do nothing over shm and rdma. For other methods of *Conn, such as Peek, assert
// the type of what NetConn returns.
//
// Its methods may be called by several goroutines at once. Errors are those of the connection
// that carries it: *net.OpError, or a bare io.EOF.
type AutoConn struct {
	stream
	passedOver []Reason
}

// stream has the methods that *Conn and *tcpConn have in common.
type stream interface {
	net.Conn
	io.ReaderFrom
	io.WriterTo
	CloseRead() error
	CloseWrite() error
	SetLinger(sec int) error
	SetNoDelay(noDelay bool) error
	SetKeepAlive(keepAlive bool) error
	SetKeepAlivePeriod(d time.Duration) error
	SetKeepAliveConfig(config net.KeepAliveConfig) error
	SetReadBuffer(bytes int) error
	SetWriteBuffer(bytes int) error
	WriteBuffers(bufs *net.Buffers) (int64, error)
	Stats() Stats
}

// NetConn returns the connection that carries c: a *[Conn] or a *net.TCPConn. c still owns it.
// [Stats] and [Totals] do not count what a program reads from the *net.TCPConn or writes to it
// directly. If a program closes the *net.TCPConn directly, Totals and a [Trace] learn of it
// only when it is garbage-collected.
func (c *AutoConn) NetConn() net.Conn {
	if tcp, ok := c.stream.(*tcpConn); ok {
		return tcp.TCPConn
	}
	return c.stream
}

// Stats returns a snapshot of the counters of the connection that carries c. It works after
// Close, too.
func (c *AutoConn) Stats() Stats { return c.stream.Stats() }

// PassedOver answers the question "why am I not on RDMA?". It returns a reason for each network
// that is better than the one that carries the connection, the best network first. At the
// accepting end these are only the networks that this listener did not offer, since the dialer
// has made the choice. The caller must not change the slice.
func (c *AutoConn) PassedOver() []Reason { return c.passedOver }

// ReadFrom implements io.ReaderFrom: io.Copy to c calls it. It writes to c what it reads from
// r until io.EOF, and copies as few bytes as the connection that carries c can.
func (c *AutoConn) ReadFrom(r io.Reader) (int64, error) {
	if _, ok := c.stream.(*Conn); ok || copying.HasDescriptor(r) {
		return c.stream.ReadFrom(r)
	}
	return copying.To(c.stream, r)
}

// WriteTo implements io.WriterTo: io.Copy from c calls it. It writes to w what it reads from c
// until io.EOF, and copies as few bytes as the connection that carries c can.
func (c *AutoConn) WriteTo(w io.Writer) (int64, error) {
	_, ok := c.stream.(*Conn)
	if _, reads := w.(io.ReaderFrom); ok || reads || copying.HasDescriptor(w) {
		return c.stream.WriteTo(w)
	}
	return copying.From(w, c.stream)
}

// WriteBuffers writes the buffers as one Write: see [rconn.Conn.WriteBuffers]. Over TCP it is
// [net.Buffers.WriteTo], which passes the buffers to the kernel in one system call where it
// can. bufs keeps what was not written, and the int64 is the number of bytes that were.
func (c *AutoConn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	return c.stream.WriteBuffers(bufs)
}

// autoError is the error of TCP, with the reasons why no better network was connected.
type autoError struct {
	tcp        error
	passedOver []Reason
}

func (e *autoError) Error() string {
	if len(e.passedOver) == 0 {
		return e.tcp.Error()
	}
	return fmt.Sprintf("%v (passed over: %s)", e.tcp, list(e.passedOver))
}

func list(reasons []Reason) string {
	var s []string
	for _, r := range reasons {
		s = append(s, r.Error())
	}
	return strings.Join(s, "; ")
}

func (e *autoError) Unwrap() error { return e.tcp }

func (e *autoError) Timeout() bool {
	var t net.Error
	return errors.As(e.tcp, &t) && t.Timeout()
}

func (e *autoError) Temporary() bool {
	var t interface{ Temporary() bool }
	return errors.As(e.tcp, &t) && t.Temporary()
}

// requiredError says why no network but TCP can be had, where TCP alone is not enough.
type requiredError struct{ reasons []Reason }

func (e *requiredError) Error() string { return "no required network is available: " + list(e.reasons) }

func (e *requiredError) Unwrap() []error {
	errs := make([]error, len(e.reasons))
	for i, r := range e.reasons {
		errs[i] = r
	}
	return errs
}
