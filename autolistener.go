package ringnet

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/rconn"
)

// AutoListener accepts connections of the network "auto": over TCP, and over
// whatever better network this machine has, all on one port. Its methods may be
// called at once.
type AutoListener struct {
	addr     Addr
	tcp      *net.TCPListener
	better   []*Listener
	claims   *claims
	parked   chan struct{} // has one for each TCP connection that waits for Accept besides the next
	deadline *deadline.Deadline
	accepted chan accepted
	serving  sync.WaitGroup
	close    sync.Once
	closed   chan struct{}
	failed   chan struct{} // closed when TCP cannot accept any more
	err      error         // why; set before failed is closed
	trace    *Trace
	stats    listenerStats // of TCP

	mu         sync.Mutex // guards passedOver
	passedOver map[string]error
}

var _ net.Listener = (*AutoListener)(nil)

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

// bare is what an error of package net, which is wrapped anew, is about.
func bare(err error) (net.Addr, error) {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Addr, op.Err
	}
	return nil, err
}

// serve hands on what a better network accepts. One that fails for good is missed
// by nobody who can dial TCP, once dialers are refused there.
func (l *AutoListener) serve(better *Listener) {
	for {
		c, err := better.accept()
		if err != nil {
			if !l.isClosed() {
				l.passOver(better.addr.Network(), err)
				_ = better.Close() // unless somebody has
			}
			return
		}
		if !l.hand(accepted{conn: c}) {
			return
		}
	}
}

// serveTCP hands on what TCP accepts and no link claims. If TCP fails for good,
// that is the listener's end.
func (l *AutoListener) serveTCP() {
	for {
		c, err := l.tcp.AcceptTCP()
		if temporary, ok := err.(interface{ Temporary() bool }); err != nil && !(ok && temporary.Temporary()) {
			_, l.err = bare(err)
			close(l.failed)
			return
		}
		goesOn := true
		switch {
		case err != nil: // which would come again at once
			goesOn = l.hand(accepted{err: err})
		case !l.claims.meet(c):
			goesOn = l.handOrPark(accepted{conn: newTCPConn(c, l.trace, false)})
		}
		if !goesOn {
			return
		}
	}
}

// hand gives a connection to Accept, and says whether the listener goes on.
func (l *AutoListener) hand(a accepted) bool {
	select {
	case l.accepted <- a:
		return true
	case <-l.closed:
		if a.conn != nil {
			reset(a.conn)
		}
		return false
	}
}

// handOrPark gives a connection to Accept. While there are claims it does not wait
// for that, for what they claim may come after it.
func (l *AutoListener) handOrPark(a accepted) bool {
	for !l.claims.any() {
		select {
		case l.accepted <- a:
			return true
		case <-l.closed:
			return l.hand(a)
		case <-l.claims.added:
		}
	}
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
// *[AutoConn]. After Close it returns an error for which errors.Is(err,
// net.ErrClosed) holds.
func (l *AutoListener) Accept() (net.Conn, error) {
	c, err := l.accept()
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: "auto", Addr: l.addr, Err: err}
	}
	passedOver := l.PassedOver()
	l.count(c.LocalAddr().Network(), len(passedOver) < len(betterThanTCP))
	l.trace.accepted(c)
	return &AutoConn{c, passedOver}, nil
}

// count counts a connection that is returned, and whether a network better than TCP is
// offered.
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

// Stats returns a snapshot of the listener's counters for each network that it
// listens on, or has listened on: "tcp", "shm", "rdma". It works after Close.
func (l *AutoListener) Stats() map[string]ListenerStats {
	stats := map[string]ListenerStats{"tcp": l.stats.snapshot()}
	for _, better := range l.better {
		stats[better.addr.Network()] = better.Stats()
	}
	return stats
}

func (l *AutoListener) accept() (stream, error) {
	if l.isClosed() {
		return nil, net.ErrClosed
	}
	if l.deadline.Expired() {
		return nil, os.ErrDeadlineExceeded
	}
	select {
	case a := <-l.accepted:
		_, err := bare(a.err)
		return a.conn, err
	case <-l.closed:
		return nil, net.ErrClosed
	case <-l.failed:
		return nil, l.err
	case <-l.deadline.Done():
		return nil, os.ErrDeadlineExceeded
	}
}

// Addr is the address listened on, an [Addr] of the network "auto", with the
// port in use.
func (l *AutoListener) Addr() net.Addr { return l.addr }

// PassedOver returns why dialers are not offered networks that are better than
// TCP, or are no more, a reason for each, the best first.
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

// SetDeadline makes Accept fail with os.ErrDeadlineExceeded from t on, an Accept
// under way included. The zero time means never.
func (l *AutoListener) SetDeadline(t time.Time) error {
	if l.isClosed() {
		return &net.OpError{Op: "set", Net: "auto", Addr: l.addr, Err: net.ErrClosed}
	}
	l.deadline.Set(t)
	return nil
}

func (l *AutoListener) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// Close stops listening. Connections that Accept has not returned are reset;
// those it has returned live on.
func (l *AutoListener) Close() error {
	err := error(&net.OpError{Op: "close", Net: "auto", Addr: l.addr, Err: net.ErrClosed})
	l.close.Do(func() {
		close(l.closed)
		err = nil
		for _, leg := range l.legs() {
			// Legs that have failed are closed already.
			if _, failed := bare(leg.Close()); failed != nil && !errors.Is(failed, net.ErrClosed) && err == nil {
				err = &net.OpError{Op: "close", Net: "auto", Addr: l.addr, Err: failed}
			}
		}
		l.deadline.Set(time.Time{})
		l.serving.Wait()
	})
	return err
}

// legs are the listeners that this one consists of.
func (l *AutoListener) legs() (legs []net.Listener) {
	if l.tcp != nil {
		legs = append(legs, l.tcp)
	}
	for _, better := range l.better {
		legs = append(legs, better)
	}
	return legs
}
