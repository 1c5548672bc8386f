// Time: when messages leave and arrive.

package sim

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// conn is what the two endpoints of a connection share.
type conn struct {
	n     *Network
	cut   atomic.Bool   // this connection's own cable
	cards [2]netip.Addr // of the two ends

	// mu guards the agenda and the state of both endpoints. The fabric holds it while it
	// writes to registered memory, and Poll while it returns completions. For the race
	// detector nothing else makes a read of that memory safe.
	mu     sync.Mutex
	agenda agenda
}

// newConn makes what the endpoints at two cards share.
func (n *Network) newConn(cards [2]netip.Addr) *conn {
	c := &conn{n: n, cards: cards}
	c.agenda.L = &c.mu
	return c
}

// broken reports whether nothing gets through.
func (c *conn) broken() bool { return c.cut.Load() || c.n.severed(c.cards[0], c.cards[1]) }

// carry runs arrive, with mu held, when a message of no length has arrived, unless nothing gets
// through then. The caller holds mu.
func (c *conn) carry(arrive func()) {
	c.agenda.after(c.n.link.Latency, func() {
		if !c.broken() {
			arrive()
		}
	})
}

// lane is one direction of the link.
type lane struct {
	free time.Time // when the last byte so far has left
	rest int64     // the fraction of a nanosecond by which free is too early, in 1/Bandwidth
}

// leave puts size bytes on the lane behind whatever is there and returns when
// the last of them has left. It takes n.mu.
func (n *Network) leave(s side, size int) time.Time {
	now := time.Now()
	if n.link.Bandwidth == 0 {
		return now
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &n.lanes[s]
	if l.free.Before(now) {
		l.free, l.rest = now, 0
	}
	t := int64(size)*int64(time.Second) + l.rest
	l.free = l.free.Add(time.Duration(t / n.link.Bandwidth))
	l.rest = t % n.link.Bandwidth
	return l.free
}
