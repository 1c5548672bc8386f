package ringnet

import (
	"context"
	"net"
	"net/netip"
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
	better   map[string]*Listener // by network: those that it has offered
	trace    *Trace
	stats    listenerStats // of TCP
}

var _ net.Listener = (*AutoListener)(nil)

// listenAuto listens on TCP and on the same port of each better network.
func (lc *ListenConfig) listenAuto(ctx context.Context, n network, address string) (*AutoListener, net.Addr, error) {
	addr, err := n.resolveLocal(ctx, address)
	if err != nil {
		return nil, nil, err
	}
	l := &AutoListener{better: make(map[string]*Listener), trace: lc.Trace}
	cfg, err := lc.auto(l)
	if err != nil {
		return nil, nil, err
	}
	if l.listener, addr, err = cfg.Listen(ctx, string(n.family), addr); err != nil {
		return nil, rconn.NewAddr("auto", addr), withReasons(err)
	}
	return l, nil, nil
}

// ListenOn listens on "auto" at the address of a TCP listener that exists already, for
// example one that a service manager or an earlier process has passed on. If it succeeds,
// the AutoListener owns tcp and closes it; if it fails, tcp stays the caller's. Where another
// socket has the port of a better network, the listener does not offer that network, and
// PassedOver says so; that socket still gets none of the connections that TCP brings here.
// The error is a *net.OpError.
func (lc *ListenConfig) ListenOn(tcp *net.TCPListener) (*AutoListener, error) {
	l := &AutoListener{better: make(map[string]*Listener), trace: lc.Trace}
	cfg, err := lc.auto(l)
	if err == nil {
		l.listener, err = cfg.ListenOn(tcp)
	}
	if err != nil {
		addr, _ := hostport.LocalAddrPort(tcp.Addr()) // which is a *net.TCPAddr
		return nil, opError("listen", "auto", nil, rconn.NewAddr("auto", addr), withReasons(err))
	}
	return l, nil
}

// auto returns how l is to listen.
func (lc *ListenConfig) auto(l *AutoListener) (*auto.ListenConfig, error) {
	most, err := lc.places()
	if err != nil {
		return nil, err
	}
	steering, err := auto.Steer()
	if err != nil {
		return nil, err
	}
	if _, err := steering.Require("ListenConfig.Require", lc.Require); err != nil {
		return nil, err
	}
	return &auto.ListenConfig{
		Steering: steering,
		Require:  lc.Require,
		TCP:      lc.TCP,
		Backlog:  most.maxConnections,
		Times:    autoTimes,
		Wrap:     func(c *net.TCPConn) auto.Conn { return l.trace.newTCPConn(c, false) },
		Offer: func(name, family string, addr netip.AddrPort, to *auto.Listener) (*auto.Part, error) {
			n := networks[name].here()
			n.family = hostport.Family(family)
			better, err := lc.listen(n, addr, most, arrivals{
				queue:  to.Queue,
				accept: to.AcceptLink,
				failed: func(better *Listener, err error) {
					to.PassOver(name, err)
					_ = better.stop() // dialers are refused there at once, and take TCP
				},
			})
			if err != nil {
				return nil, err
			}
			l.better[name] = better
			return &auto.Part{Serve: func() { go better.serve() }, Refuse: better.refuse, Stop: better.stop}, nil
		},
	}, nil
}

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
	l.count(a.Conn.Carrier(), len(passedOver) < len(auto.BetterThanTCP))
	l.trace.accepted(a.Conn)
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

// count counts a connection that Accept returns. offered reports whether the listener offers a
// network better than TCP.
func (l *AutoListener) count(network string, offered bool) {
	if better := l.better[network]; better != nil {
		better.stats.accepted(network)
		return
	}
	l.stats.count(network, func(s *ListenerStats) {
		s.Accepted++
		if offered {
			s.FellBack++
		}
	})
}

// Stats returns a snapshot of the listener's counters for each network on which it listens
// or has listened: "tcp", "shm", "rdma". It works after Close, too.
func (l *AutoListener) Stats() map[string]ListenerStats {
	stats := map[string]ListenerStats{"tcp": l.stats.snapshot()}
	for network, better := range l.better {
		stats[network] = better.Stats()
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
