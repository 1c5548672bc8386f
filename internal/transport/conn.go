package transport

// What connections of all networks have in common, and who is told of them.

import (
	"io"
	"net"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// Conn is a connection of any network, TCP included: a *rconn.Conn or a *auto.TCPConn.
type Conn interface {
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
	SyscallConn() (syscall.RawConn, error)
	AwaitRead() error
	PeerUser() (uid uint32, known bool)
	Stats() rconn.Stats
	Carrier() string
}

// Reset closes a connection that nobody wants, so that its peer reads ECONNRESET.
func Reset(c interface {
	SetLinger(sec int) error
	Close() error
}) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// Events is told what happens to the links and connections of a dialer or a listener. Several
// goroutines may call a method at once. A listener calls Opened and HandshakeFailed with locks held:
// they neither wait nor call the link.
type Events interface {
	// Opened returns the connection of a stream that begins, and OpenedTCP that of one over TCP.
	Opened(*link.Stream) *rconn.Conn
	OpenedTCP(*net.TCPConn) Conn

	LinkMade(*link.Link)

	// HandshakeFailed says why a listener has not given a dialer the connection that it has asked for.
	HandshakeFailed(network string, why error)
}
