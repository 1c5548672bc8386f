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

// AutoConn is a connection of the network "auto", as Dial and Accept return it
// there. LocalAddr().Network() tells what carries it: "shm", "rdma" or "tcp".
//
// Besides the methods below it has those of net.Conn, and CloseRead, CloseWrite and
// SetLinger as *[Conn] documents them. SetNoDelay, SetKeepAlive, SetKeepAlivePeriod,
// SetKeepAliveConfig, SetReadBuffer and SetWriteBuffer set what a *net.TCPConn has,
// and do nothing on shm and rdma. For other methods of *Conn, such as Peek, assert
// what NetConn returns.
type AutoConn struct {
	stream
	passedOver []Reason
}

// stream is what a *Conn and a *tcpConn have in common.
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

// NetConn returns the connection that carries c: a *[Conn] or a *net.TCPConn. What is
// read from or written to the *net.TCPConn directly is not in [Stats] and [Totals], and
// a Close of it is noticed there, and by a [Trace], when it is garbage-collected.
func (c *AutoConn) NetConn() net.Conn {
	if tcp, ok := c.stream.(*tcpConn); ok {
		return tcp.TCPConn
	}
	return c.stream
}

// Stats returns a snapshot of the counters of the connection that carries c. It works
// after Close.
func (c *AutoConn) Stats() Stats { return c.stream.Stats() }

// PassedOver answers the question "why am I not on RDMA?": a reason for each
// network that is better than the one that carries the connection, the best
// first. On the accepting side, where the dialer has chosen, these are the
// networks that this side had not to offer.
func (c *AutoConn) PassedOver() []Reason { return c.passedOver }

// ReadFrom implements io.ReaderFrom as the connection that carries c does.
func (c *AutoConn) ReadFrom(r io.Reader) (int64, error) {
	if _, ok := c.stream.(*Conn); ok || copying.HasDescriptor(r) {
		return c.stream.ReadFrom(r)
	}
	return copying.To(c.stream, r)
}

// WriteTo implements io.WriterTo as the connection that carries c does.
func (c *AutoConn) WriteTo(w io.Writer) (int64, error) {
	_, ok := c.stream.(*Conn)
	if _, reads := w.(io.ReaderFrom); ok || reads || copying.HasDescriptor(w) {
		return c.stream.WriteTo(w)
	}
	return copying.From(w, c.stream)
}

// WriteBuffers is [Conn.WriteBuffers]; over TCP it is [net.Buffers.WriteTo], which
// hands the buffers to the kernel as they are.
func (c *AutoConn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	return c.stream.WriteBuffers(bufs)
}

// autoError is TCP's error, and why it was not for a better network to try.
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

// requiredError is why none of the networks carries a connection that must.
type requiredError struct{ reasons []Reason }

func (e *requiredError) Error() string { return "no network but TCP: " + list(e.reasons) }

func (e *requiredError) Unwrap() []error {
	errs := make([]error, len(e.reasons))
	for i, r := range e.reasons {
		errs[i] = r
	}
	return errs
}
