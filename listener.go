package ringnet

// Listener, on one network.

import (
	"net"
	"time"

	"github.com/ringnet/ringnet/internal/transport"
)

// Listener accepts connections on one network; Listen returns it for "rdma" and "shm". Its
// methods may be called by several goroutines at once. Handshakes run in the background:
// dialers need not wait for Accept. When a handshake fails, the dialer gets the error, and
// Stats counts it.
type Listener struct {
	addr     Addr
	listener *transport.Listener
	observer observer
}

var _ net.Listener = (*Listener)(nil)

// Accept waits for the next connection, until the deadline, and returns it: a *[Conn],
// which the caller closes. The error is a *net.OpError. errors.Is finds
// os.ErrDeadlineExceeded in it after the deadline, and net.ErrClosed after Close. After any
// other error the listener accepts no more connections, for example with
// syscall.ENETDOWN when its device is gone.
func (l *Listener) Accept() (net.Conn, error) {
	a, err := l.listener.Next()
	if err != nil {
		return nil, l.opError("accept", err)
	}
	l.observer.accepted(a.Conn, false)
	return a.Conn, nil
}

// Stats returns a snapshot of the listener's counters. It works after Close, too.
func (l *Listener) Stats() ListenerStats { return l.observer.stats.snapshot(l.addr.Network()) }

// Addr returns the address that the listener listens at: an [Addr] with the port in use.
func (l *Listener) Addr() net.Addr { return l.addr }

// SetDeadline makes Accept fail with os.ErrDeadlineExceeded from t on, also an Accept that
// is waiting. The zero time means no deadline. After Close the error is net.ErrClosed.
func (l *Listener) SetDeadline(t time.Time) error {
	return l.opError("set", l.listener.SetDeadline(t))
}

// Close stops listening. It resets the connections that Accept has not returned; those
// that it has returned go on, and their links end with the last of them. A second Close
// returns net.ErrClosed.
func (l *Listener) Close() error { return l.opError("close", l.listener.Close()) }

// opError wraps what went wrong in an operation of the listener.
func (l *Listener) opError(op string, err error) error {
	return opError(op, l.addr.Network(), nil, l.addr, err)
}
