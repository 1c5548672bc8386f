package auto

// The listener's half of a proof. A request for a link names a TCP connection; when that
// connection comes, it proves the link, and Accept does not return it. See docs/auto.md.

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/netns"
	"github.com/ringnet/ringnet/internal/transport"
	"github.com/ringnet/ringnet/internal/wire"
)

// claims are the TCP connections that requests for links have named at one listener.
type claims struct {
	giveBack func(*net.TCPConn) // has Accept return a connection that has proved no link
	added    func()             // is called when a claim was added
	within   time.Duration      // Times.Proof

	namespace *netns.Entry // that of the connections

	mu   sync.Mutex // guards what follows, and the claims
	open map[ends]*claim
}

// ends are the two addresses of a TCP connection as the listener sees them.
type ends struct{ remote, local netip.AddrPort }

// claim is the claim of one link to the TCP connection that its request has named.
type claim struct {
	owns func() bool   // reports, once there is that connection, whether it may be the dialer's
	met  chan struct{} // closed when conn is known to be the dialer's, and stays
	conn *net.TCPConn  // the kernel is being asked whose it is, until met is closed
	late *time.Timer   // calls end, when the link is not confirmed in time
	end  func()        // ends the handshake of the link
}

var errClaimed = wire.Reject{Busy: true, Reason: "another dialer has named the same TCP port"}

// accept answers a request for a link. If the request names a TCP connection, accept returns
// the link only when it is proven.
func (cs *claims) accept(ctx context.Context, ep fabric.Endpoint, cfg link.Setup) (*link.Link, *link.Stream, error) {
	port := wire.ProofPort(ep.Private())
	if port == 0 {
		return link.Accept(ctx, ep, cfg)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	key := ends{netip.AddrPortFrom(ep.RemoteAddr().Addr(), port), ep.LocalAddr()}
	owns, err := cs.ownership(ep, key)
	if err != nil {
		_ = ep.Close()
		return nil, nil, err
	}
	c := &claim{owns: owns, met: make(chan struct{}), end: cancel}
	if !cs.add(key, c) {
		return transport.Refuse(ep, errClaimed)
	}
	cs.added()
	cfg.Proof = &link.Proof{Port: port, Verify: func(ctx context.Context, _ <-chan struct{}) error {
		return cs.settle(ctx, key, c)
	}}
	l, s, err := link.Accept(ctx, ep, cfg)
	if err != nil {
		cs.drop(key, c)
	}
	return l, s, err
}

// ownership returns the field owns of a claim. A dialer on the same host states its address and
// port, so one of another user could name a stranger's TCP connection: the kernel has to say that
// the connection is its user's. Over rdma nobody can be asked.
func (cs *claims) ownership(ep fabric.Endpoint, key ends) (func() bool, error) {
	neighbor, ok := ep.(fabric.Neighbor)
	if !ok {
		return func() bool { return true }, nil
	}
	uid, err := neighbor.PeerUser()
	return func() (owns bool) {
		_ = cs.namespace.Do(func() { owns = shm.OwnsTCP(uid, key.remote, key.local) })
		return owns
	}, err
}

// add adds a claim, unless there is one to the same connection.
func (cs *claims) add(key ends, c *claim) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.open[key] != nil {
		return false
	}
	cs.open[key] = c
	return true
}

// any reports whether there are claims.
func (cs *claims) any() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return len(cs.open) > 0
}

// meet takes a TCP connection that is claimed, and returns false for any other. It holds the
// connection until the link is confirmed, for Times.Proof at most. It does not wait for the kernel
// to tell whose the connection is: Accept waits for meet.
func (cs *claims) meet(conn *net.TCPConn) bool {
	key := ends{plain(conn.RemoteAddr()), plain(conn.LocalAddr())}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.open[key]
	if c == nil || c.conn != nil {
		return false
	}
	c.conn = conn
	c.late = time.AfterFunc(cs.within, c.end)
	go cs.ask(c)
	return true
}

// ask asks whose the connection is that a claim has taken, and gives one back that is not the
// dialer's.
func (cs *claims) ask(c *claim) {
	owns := c.owns()
	cs.mu.Lock()
	defer cs.mu.Unlock()
	switch {
	case c.conn == nil: // dropped meanwhile
	case owns:
		close(c.met)
	default:
		c.late.Stop()
		go cs.giveBack(c.conn)
		c.conn = nil
	}
}

// plain returns the address of a TCP connection as fabrics write it.
func plain(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// settle waits for the TCP connection of a link that is confirmed, and closes it, which is the
// proof for the dialer.
func (cs *claims) settle(ctx context.Context, key ends, c *claim) error {
	timer := time.NewTimer(cs.within)
	defer timer.Stop()
	select {
	case <-c.met:
	case <-timer.C:
	case <-ctx.Done():
	}
	select {
	case <-c.met:
	default:
		return ErrUnmet
	}
	if !isQuiet(c.conn) {
		return ErrUnmet
	}
	cs.mu.Lock()
	delete(cs.open, key)
	cs.mu.Unlock()
	c.late.Stop()
	_ = c.conn.Close()
	return nil
}

// drop removes a claim, and gives back the connection that it has taken, if any.
func (cs *claims) drop(key ends, c *claim) {
	cs.mu.Lock()
	delete(cs.open, key)
	conn := c.conn
	c.conn = nil
	cs.mu.Unlock()
	if conn != nil {
		c.late.Stop()
		cs.giveBack(conn)
	}
}
