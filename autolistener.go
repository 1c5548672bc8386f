package ringnet

// AutoListener, on TCP and the better networks.

import (
	"net"
	"time"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/hostport"
	"github.com/ringnet/ringnet/rconn"
)

// AutoListener accepts connections of the network "auto": over TCP, and over each better
// network that this machine has, all on one port. Its methods may be called by several
// goroutines at once.
type AutoListener struct {
	listener *auto.Listener
	observer observer
}

var _ net.Listener = (*AutoListener)(nil)

// Accept waits for the next connection, until the deadline, and returns it: an
// *[AutoConn], which the caller closes. The error is a *net.OpError. errors.Is finds
// os.ErrDeadlineExceeded in it after the deadline, and net.ErrClosed after Close. An error
// of TCP whose Temporary method returns true passes, as with a *net.TCPListener; after any
// other error the listener accepts no more connections. It goes on without a better network
// whose listener has failed: see [AutoListener.PassedOver].
func (l *AutoListener) Accept() (net.Conn, error) {
	a, err := l.listener.Next()
	if err == nil {
		err = a.Err
	}
	if err != nil {
		return nil, l.opError("accept", err)
	}
	passedOver := reasonsOf(l.listener.PassedOver(a.Conn.Carrier()))
	l.observer.accepted(a.Conn, a.Conn.Carrier() == "tcp" && len(passedOver) < len(auto.BetterThanTCP))
	conn := newAutoConn(a.Conn, passedOver)
	if l.Addr().(*net.TCPAddr).IP.To4() == nil {
		conn.local, conn.remote = asIPv6(conn.local), asIPv6(conn.remote)
	}
	return conn, nil
}

// asIPv6 returns an address as a TCP socket of IPv6 has it: one of IPv4 as ::ffff:a.b.c.d.
// Programs compare the address of a client with others that it has had over another network.
func asIPv6(a net.Addr) net.Addr {
	tcp := *a.(*net.TCPAddr)
	tcp.IP = tcp.IP.To16()
	return &tcp
}

// Stats returns a snapshot of the listener's counters for each network on which it listens
// or has listened: "tcp", "shm", "rdma". It works after Close, too.
func (l *AutoListener) Stats() map[string]ListenerStats {
	stats := make(map[string]ListenerStats)
	for _, network := range l.listener.Networks() {
		stats[network] = l.observer.stats.snapshot(network)
	}
	return stats
}

// Addr returns the address that the listener listens at, with the port in use: the
// *net.TCPAddr of its TCP listener.
func (l *AutoListener) Addr() net.Addr { return l.listener.TCP.Addr() }

// PassedOver returns why the listener does not offer a network that is better than TCP, or
// has stopped offering it: a reason for each such network, the best network first.
func (l *AutoListener) PassedOver() []Reason { return reasonsOf(l.listener.PassedOver("tcp")) }

// SetDeadline makes Accept fail with os.ErrDeadlineExceeded from t on, also an Accept that
// is waiting. The zero time means no deadline. After Close the error is net.ErrClosed.
func (l *AutoListener) SetDeadline(t time.Time) error {
	return l.opError("set", l.listener.SetDeadline(t))
}

// Close stops listening on all networks. It resets the connections that Accept has not
// returned; those that it has returned go on. A second Close returns net.ErrClosed.
func (l *AutoListener) Close() error { return l.opError("close", l.listener.Close()) }

// opError wraps what went wrong in an operation of the listener.
func (l *AutoListener) opError(op string, err error) error {
	addr, _ := hostport.LocalAddrPort(l.Addr()) // which is a *net.TCPAddr
	return opError(op, "auto", nil, rconn.NewAddr("auto", addr), err)
}
