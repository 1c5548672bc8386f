package ringnet

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/ringnet/ringnet/rconn"
)

// AutoListener accepts connections of the network "auto": over TCP, and over each better
// network that this machine has, all on one port. Its methods may be called by several
// goroutines at once.
type AutoListener struct {
	autoAcceptor
	tcp     *net.TCPListener
	better  []*Listener
	claims  *claims
	parked  chan struct{} // has an element for each TCP connection that waits in a goroutine of its own: see park
	serving sync.WaitGroup
	close   sync.Once
	trace   *Trace
	stats   listenerStats // of TCP

	mu         sync.Mutex // guards passedOver
	passedOver map[string]error
}

var _ net.Listener = (*AutoListener)(nil)

// accepted is what one of the networks has accepted, or an error that Accept returns once.
type accepted struct {
	conn stream
	err  error
}

// start begins to accept.
func (l *AutoListener) start() {
	l.addr = rconn.NewAddr("auto", l.tcp.Addr().(*net.TCPAddr).AddrPort())
	l.serving.Go(l.serveTCP)
	for _, better := range l.better {
		l.serving.Go(func() { l.serve(better) })
	}
}

// serve passes on what a better network accepts. If its listener fails, serve closes it, so
// that dialers are refused there at once and take TCP.
func (l *AutoListener) serve(better *Listener) {
	for {
		c, err := better.accept()
		if err != nil {
			if l.ctx.Err() == nil {
				l.passOver(better.addr.Network(), err)
				_ = better.Close()
			}
			return
		}
		if !l.hand(accepted{conn: c}) {
			return
		}
	}
}

// serveTCP passes on the connections that TCP accepts and no link claims. If TCP's listener
// fails, the whole listener does.
func (l *AutoListener) serveTCP() {
	for {
		c, err := l.tcp.AcceptTCP()
		if temporary, ok := err.(interface{ Temporary() bool }); err != nil && !(ok && temporary.Temporary()) {
			_, cause := unwrapOp(err)
			l.fail(cause)
			return
		}
		goesOn := true
		switch {
		case err != nil: // a temporary error, which AcceptTCP would return again at once
			goesOn = l.hand(accepted{err: err})
		case !l.claims.meet(c):
			goesOn = l.handOrPark(accepted{conn: newTCPConn(c, l.trace, false)})
		}
		if !goesOn {
			return
		}
	}
}

// hand passes a connection to Accept, and waits until Accept takes it. It returns false when
// the listener is closed.
func (l *AutoListener) hand(a accepted) bool {
	select {
	case l.accepted <- a:
		return true
	case <-l.ctx.Done():
		if a.conn != nil {
			reset(a.conn)
		}
		return false
	}
}

// handOrPark passes a connection to Accept. While there are claims it does not wait for
// Accept: the TCP connections that they claim may be queued in the kernel behind this one.
func (l *AutoListener) handOrPark(a accepted) bool {
	for !l.claims.any() {
		select {
		case l.accepted <- a:
			return true
		case <-l.ctx.Done():
			return l.hand(a)
		case <-l.claims.added:
		}
	}
	return l.park(a)
}

// park has the connection wait for Accept in a goroutine of its own, if Backlog allows one
// more of these.
func (l *AutoListener) park(a accepted) bool {
	select {
	case l.parked <- struct{}{}:
		l.serving.Go(func() {
			l.hand(a)
			<-l.parked
		})
		return true
	default:
		return l.hand(a)
	}
}

// Accept waits for the next connection, until the deadline, and returns it: an
// *[AutoConn], which the caller closes. The error is a *net.OpError. errors.Is finds
// os.ErrDeadlineExceeded in it after the deadline, and net.ErrClosed after Close. An error
// of TCP whose Temporary method returns true passes, as with a *net.TCPListener; after any
// other error the listener accepts no more connections. It goes on without a better network
// whose listener has failed: see [AutoListener.PassedOver].
func (l *AutoListener) Accept() (net.Conn, error) {
	a, err := l.next()
	if err == nil {
		_, err = unwrapOp(a.err)
	}
	if err != nil {
		return nil, l.opError("accept", err)
	}
	c := a.conn
	passedOver := l.PassedOver()
	l.count(c.Carrier(), len(passedOver) < len(betterThanTCP))
	l.trace.accepted(c)
	conn := newAutoConn(c, passedOver)
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
	for _, better := range l.better {
		if better.addr.Network() == network {
			better.stats.accepted(network)
			return
		}
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
	for _, better := range l.better {
		stats[better.addr.Network()] = better.Stats()
	}
	return stats
}

// Addr returns the address that the listener listens at, with the port in use: the
// *net.TCPAddr of its TCP listener.
func (l *AutoListener) Addr() net.Addr { return l.tcp.Addr() }

// PassedOver returns why the listener does not offer a network that is better than TCP, or
// has stopped offering it: a reason for each such network, the best network first.
func (l *AutoListener) PassedOver() []Reason {
	l.mu.Lock()
	defer l.mu.Unlock()
	var reasons []Reason
	for _, network := range betterThanTCP {
		if err := l.passedOver[network]; err != nil {
			reasons = append(reasons, reasonOf(network, err))
		}
	}
	return reasons
}

func (l *AutoListener) passOver(network string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passedOver[network] = err
}

// SetDeadline makes Accept fail with os.ErrDeadlineExceeded from t on, also an Accept that
// is waiting. The zero time means no deadline. After Close the error is net.ErrClosed.
func (l *AutoListener) SetDeadline(t time.Time) error { return l.setDeadline(t) }

// Close stops listening on all networks. It resets the connections that Accept has not
// returned; those that it has returned go on. A second Close returns net.ErrClosed.
func (l *AutoListener) Close() error {
	err := l.opError("close", net.ErrClosed)
	l.close.Do(func() {
		l.cancel()
		err = nil
		for _, leg := range l.legs() {
			// Legs that have failed are closed already.
			if _, failed := unwrapOp(leg.Close()); failed != nil && !errors.Is(failed, net.ErrClosed) && err == nil {
				err = l.opError("close", failed)
			}
		}
		l.deadline.Set(time.Time{})
		l.serving.Wait()
	})
	return err
}

// legs returns the listeners that this one consists of.
func (l *AutoListener) legs() (legs []net.Listener) {
	if l.tcp != nil {
		legs = append(legs, l.tcp)
	}
	for _, better := range l.better {
		legs = append(legs, better)
	}
	return legs
}
