package ringnet

// What happens to dials, connections and links is counted, and told to a Trace.

import (
	"errors"
	"net"
	"time"
	"weak"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/transport"
	"github.com/ringnet/ringnet/rconn"
)

// observer is told of the connections of one dial or listener. It implements transport.Events.
type observer struct {
	trace  *Trace // may be nil
	dialed bool   // by this process
	stats  listenerStats
}

// Opened makes a connection of a stream, and counts it.
func (o *observer) Opened(s *link.Stream) *Conn {
	network := s.Link().Network()
	c := o.opened(network, rconn.NewAddr(network, s.LocalAddr()), rconn.NewAddr(network, s.RemoteAddr()))
	c.stream = s
	conn := rconn.New(s, c.ended)
	c.enter(keyOf(conn))
	return conn
}

// OpenedTCP makes a connection of auto that TCP carries, and counts it.
func (o *observer) OpenedTCP(tcp *net.TCPConn) transport.Conn {
	c := o.opened("tcp", tcp.LocalAddr(), tcp.RemoteAddr())
	conn := auto.NewTCPConn(tcp, c.ended)
	c.tcp = weak.Make(conn)
	c.enter(keyOf(conn))
	return conn
}

// opened counts a connection that begins.
func (o *observer) opened(carrier string, local, remote net.Addr) *connection {
	totals.count(carrier, func(t *NetworkTotals) { t.Opened++ })
	answerer.Hold()
	return &connection{
		CloseEvent: CloseEvent{Carrier: carrier, Local: local, Remote: remote, Dialed: o.dialed},
		trace:      o.trace,
		began:      time.Now(),
	}
}

// ended is called when the connection has ended.
func (c *connection) ended(end rconn.End) {
	c.leave()
	answerer.Release()
	totals.count(c.Carrier, func(t *NetworkTotals) { t.Closed++ })
	if c.trace != nil && c.trace.Closed != nil {
		c.Age = time.Since(c.began)
		c.Stats, c.Err, c.Dropped = end.Stats, end.Err, end.Dropped
		c.trace.Closed(c.CloseEvent)
	}
}

// LinkMade counts a link, and reports it, and what becomes of it, to the Trace.
func (o *observer) LinkMade(l *link.Link) {
	t, network := o.trace, l.Network()
	totals.count(network, func(t *NetworkTotals) { t.LinksMade++ })
	if t != nil && t.LinkUp != nil {
		t.LinkUp(rconn.LinkInfoOf(l.Info()))
	}
	if t != nil && t.LinkMoved != nil {
		l.OnMove(func(i link.Info, waited time.Duration, cause error) { t.LinkMoved(rconn.LinkInfoOf(i), waited, cause) })
	}
	l.OnDown(func(cause error) {
		if cause != nil {
			totals.count(network, func(t *NetworkTotals) { increment(&t.LinksLost, codeOf(cause)) })
		}
		if t != nil && t.LinkDown != nil {
			t.LinkDown(rconn.LinkInfoOf(l.Info()), cause)
		}
	})
}

// HandshakeFailed counts a connection that a dialer has asked a listener for and not got.
func (o *observer) HandshakeFailed(network string, why error) {
	code := codeOf(why)
	if code == ReasonCanceled { // by this side, for the peer did not confirm in time
		code = ReasonSilent
	}
	o.stats.count(network, func(s *ListenerStats) { increment(&s.Failed, code) })
}

// accepted counts a connection that Accept returns. fellBack says that TCP carries it although the
// listener offers a better network.
func (o *observer) accepted(c transport.Conn, fellBack bool) {
	o.stats.count(c.Carrier(), func(s *ListenerStats) {
		s.Accepted++
		if fellBack {
			s.FellBack++
		}
	})
	if o.trace != nil && o.trace.Accepted != nil {
		o.trace.Accepted(AcceptEvent{c.LocalAddr().Network(), c.LocalAddr(), c.RemoteAddr()})
	}
}

// countDial counts a dial of a network that has returned c or err.
func countDial(network string, c net.Conn, err error) {
	for _, r := range reasonsIn(c, err) {
		totals.count(r.Network, func(t *NetworkTotals) { increment(&t.PassedOver, r.Code) })
	}
	if err != nil {
		totals.count(network, func(t *NetworkTotals) { increment(&t.DialsFailed, codeOf(err)) })
		return
	}
	totals.count(c.(interface{ Carrier() string }).Carrier(), func(t *NetworkTotals) { t.Dialed++ })
}

// reportDial tells a Trace, which may be nil, of a dial that has ended.
func reportDial(t *Trace, network, address string, took time.Duration, c net.Conn, err error) {
	if t == nil || t.Dialed == nil {
		return
	}
	e := DialEvent{Network: network, Address: address, Took: took, PassedOver: reasonsIn(c, err), Err: err}
	if err == nil {
		if a, ok := c.(*AutoConn); ok {
			c = a.carrier
		}
		e.Local, e.Remote = c.LocalAddr(), c.RemoteAddr()
		e.Carrier = e.Local.Network()
	}
	t.Dialed(e)
}

// reasonsIn returns the reasons why a dial has not connected over better networks.
func reasonsIn(c net.Conn, err error) []Reason {
	var required *requiredError
	var failed *auto.DialError
	switch {
	case errors.As(err, &required):
		return required.reasons
	case errors.As(err, &failed):
		return reasonsOf(failed.PassedOver)
	case err != nil:
		return nil
	}
	if a, ok := c.(*AutoConn); ok {
		return a.passedOver
	}
	return nil
}
