package ringnet

// The listener's half of a proof: which TCP connections are not for Accept, but
// for the link whose request has named them. See docs/auto.md.

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/wire"
)

// claims are those of a listener. A nil one refuses all.
type claims struct {
	giveBack func(*net.TCPConn) // takes a connection that proves nothing
	within   time.Duration      // proofWithin

	mu    sync.Mutex // guards what follows, and the claims
	open  map[ends]*claim
	added chan struct{} // has room for one
}

// ends are the addresses of a TCP connection as the listener sees them.
type ends struct{ remote, local netip.AddrPort }

// claim is one to the TCP connection with certain ends.
type claim struct {
	met  chan struct{} // closed when conn is set
	conn *net.TCPConn
	late *time.Timer // ends the handshake of the link
	end  func()      // does that
}

func newClaims(giveBack func(*net.TCPConn)) *claims {
	return &claims{giveBack: giveBack, within: proofWithin, open: make(map[ends]*claim), added: make(chan struct{}, 1)}
}

// Why a link is not proven.
var (
	errNoClaims = wire.Reject{Reason: "it does not listen on TCP, so it cannot show that TCP leads to it"}
	errClaimed  = wire.Reject{Busy: true, Reason: "another dialer has named the same port"}
	errUnmet    = errors.New("TCP has not come to this listener")
)

// accept makes a link of a request, and returns it when it is proven, if the
// request asks for that.
func (cs *claims) accept(ctx context.Context, ep fabric.Endpoint, cfg link.Config) (*link.Link, *link.Stream, error) {
	port := wire.ProofPort(ep.Private())
	if port == 0 {
		return link.Accept(ctx, ep, cfg)
	}
	cfg.Proof = port
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	key := ends{netip.AddrPortFrom(ep.RemoteAddr().Addr(), port), ep.LocalAddr()}
	c, refusal := cs.add(key, cancel)
	if c == nil {
		_ = ep.Reject(refusal.Append(nil))
		_ = ep.Close()
		return nil, nil, errUnmet
	}
	l, s, err := link.Accept(ctx, ep, cfg)
	if err != nil {
		cs.drop(key, c)
		return nil, nil, err
	}
	if err := cs.settle(ctx, key, c); err != nil {
		l.Abort()
		if s != nil {
			_ = s.Close(0)
		}
		return nil, nil, err
	}
	return l, s, nil
}

// add enters a claim, or returns why it cannot. end ends the handshake.
func (cs *claims) add(key ends, end func()) (*claim, wire.Reject) {
	if cs == nil {
		return nil, errNoClaims
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.open[key] != nil {
		return nil, errClaimed
	}
	c := &claim{met: make(chan struct{}), end: end}
	cs.open[key] = c
	select {
	case cs.added <- struct{}{}:
	default:
	}
	return c, wire.Reject{}
}

// any says whether there are claims.
func (cs *claims) any() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return len(cs.open) > 0
}

// meet holds back a TCP connection that is claimed, and else returns false. It is
// held until the link is confirmed, or proofWithin.
func (cs *claims) meet(conn *net.TCPConn) bool {
	key := ends{plain(conn.RemoteAddr()), plain(conn.LocalAddr())}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.open[key]
	if c == nil || c.conn != nil {
		return false
	}
	c.conn = conn
	close(c.met)
	c.late = time.AfterFunc(cs.within, c.end)
	return true
}

// plain is the address of a TCP connection as fabrics have it.
func plain(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// settle ends the TCP connection of a link that is confirmed, which is the proof
// for the dialer.
func (cs *claims) settle(ctx context.Context, key ends, c *claim) error {
	timer := time.NewTimer(cs.within)
	defer timer.Stop()
	select {
	case <-c.met:
	case <-timer.C:
	case <-ctx.Done():
	}
	cs.mu.Lock()
	proven := c.conn != nil && isQuiet(c.conn)
	if proven {
		delete(cs.open, key)
	}
	cs.mu.Unlock()
	if !proven {
		cs.drop(key, c)
		return errUnmet
	}
	c.late.Stop()
	_ = c.conn.Close()
	return nil
}

// drop takes a claim back, and gives back the connection that has met it.
func (cs *claims) drop(key ends, c *claim) {
	cs.mu.Lock()
	delete(cs.open, key)
	cs.mu.Unlock()
	if c.conn != nil {
		c.late.Stop()
		cs.giveBack(c.conn)
	}
}
