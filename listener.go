package ringnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// ListenConfig has the options of listening. The zero ListenConfig is Listen
// without options.
type ListenConfig struct {
	// TrustUser decides whether to accept, by shm, dialers of another user than
	// this process's, as Dialer.TrustUser does for listeners. nil trusts no
	// other, not even root.
	TrustUser func(uid uint32) bool

	// TCP has options of the TCP listener of "auto": Control, KeepAliveConfig,
	// Multipath TCP. nil means the defaults.
	TCP *net.ListenConfig

	// Require names networks that are better than TCP, "shm" or "rdma": on "auto",
	// Listen fails, with the reasons, if one of them cannot be offered.
	Require []string

	// Trace has functions to call for accepted connections, and for their links. nil
	// means none.
	Trace *Trace

	// Config is for this end of the accepted connections; nil means the
	// defaults.
	Config *Config

	// Backlog is how many connections may be made and not yet accepted. The
	// listener refuses more for the moment, and their dialers ask again in a
	// while. Default 4096; more than 65536 means 65536.
	Backlog int

	// PendingMemory bounds, in bytes, the memory pinned for links of which
	// Accept has not returned a connection yet. It bounds two sums, each by
	// itself: what this end's Config asks for, of which one link is always
	// allowed; and, over shm, what dialers ask this end to make for them. A
	// dialer that asks for more than PendingMemory is refused for good. Default 256 MiB, which is
	// 121 links of default size, each counted as if it were dedicated to one
	// connection.
	//
	// On "auto", Backlog and PendingMemory hold for each network that is better
	// than TCP by itself.
	PendingMemory int
}

const (
	defaultBacklog       = 4096
	maxBacklog           = 1 << 16
	defaultPendingMemory = 256 << 20
)

// confirmWithin is how long a peer may take to confirm the answer to its request
// when others find no room: enough for rdma_cm to repeat one message that was
// lost, which it does after 4 to 6 s.
const confirmWithin = 8 * time.Second

// Listen announces on the address of the named network: "rdma", "rdma4",
// "rdma6", "shm", "auto", "auto4" or "auto6". The address has the form
// "host:port", as for net.Listen: without a host it is all addresses of this
// machine, and port 0, or none, means a free one, which the listener's Addr
// tells. The net.Listener is a *[Listener], or an *[AutoListener] on "auto",
// "auto4" and "auto6". The error is a *net.OpError.
func Listen(network, address string) (net.Listener, error) {
	return (&ListenConfig{}).Listen(context.Background(), network, address)
}

// Listen announces on the address of the named network. ctx is for resolving
// the address; the listener does not depend on it. See the function [Listen].
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	address = cmp.Or(address, ":0") // as net.Listen has it
	var addr net.Addr
	if _, ok := autoNetworks[network]; ok {
		l, addr, err = lc.listenAuto(ctx, network, address)
	} else if n, unknown := lookupNetwork(network); unknown != nil {
		err = unknown
	} else {
		l, addr, err = lc.listen(ctx, n, address, nil)
	}
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: addr, Err: contextError(err)}
	}
	return l, nil
}

// listen announces on a network of a fabric, or says what went wrong at which
// address. Links are proven by the claims, which may be nil.
func (lc *ListenConfig) listen(ctx context.Context, n network, address string, claims *claims) (*Listener, net.Addr, error) {
	backlog, pending, err := lc.pending()
	if err != nil {
		return nil, nil, err
	}
	cfg, err := lc.Config.Link()
	if err != nil {
		return nil, nil, err
	}
	addrs, err := n.resolve(ctx, net.DefaultResolver, address, n.wildcard())
	if err != nil {
		return nil, nil, err
	}
	addr := preferIPv4(addrs)
	f, err := n.open(lc.TrustUser, lc.Config)
	if err != nil {
		return nil, rconn.NewAddr(n.name, addr), err
	}
	fl, err := f.Listen(n.listenOn(addr), pending)
	if err != nil {
		return nil, rconn.NewAddr(n.name, addr), err
	}
	l := &Listener{
		listener: fl,
		config:   lc.Config,
		trace:    lc.Trace,
		claims:   claims,
		addr:     rconn.NewAddr(n.name, fl.Addr()),
		deadline: deadline.New(),
		pending:  make(chan struct{}, pending),
		backlog:  make(chan struct{}, backlog),
		accepted: make(chan waiting, backlog),
		peersMax: cmp.Or(lc.PendingMemory, defaultPendingMemory),
		failed:   make(chan struct{}),
		empty:    make(map[*incoming]*link.Link),
	}
	completeLink(&cfg, n, f)
	l.link = cfg
	l.ctx, l.cancel = context.WithCancel(context.Background())
	go l.serve()
	return l, nil, nil
}

// preferIPv4 is the address to listen on of those that a name has, as package net
// prefers.
func preferIPv4(addrs []netip.AddrPort) netip.AddrPort {
	for _, a := range addrs {
		if a.Addr().Is4() {
			return a
		}
	}
	return addrs[0]
}

// pending is how many connections may wait to be accepted, and on how many links
// of their own.
func (lc *ListenConfig) pending() (connections, links int, err error) {
	if err := lc.Config.Validate(); err != nil {
		return 0, 0, err
	}
	backlog, memory := lc.Backlog, lc.PendingMemory
	if backlog == 0 {
		backlog = defaultBacklog
	}
	if memory == 0 {
		memory = defaultPendingMemory
	}
	if backlog < 0 {
		return 0, 0, fmt.Errorf("ListenConfig.Backlog is %d: want a positive number, or 0 for the default of %d", backlog, defaultBacklog)
	}
	if memory < 0 {
		return 0, 0, fmt.Errorf("ListenConfig.PendingMemory is %d: want a positive number, or 0 for the default of %d", memory, defaultPendingMemory)
	}
	backlog = min(backlog, maxBacklog)
	return backlog, max(1, min(backlog, memory/lc.linkMemory())), nil
}

// linkMemory is how much an end of a link pins at first, at most: the dialer
// decides whether it is dedicated to one connection.
func (lc *ListenConfig) linkMemory() int {
	var c Config
	if lc.Config != nil {
		c = *lc.Config
	}
	c.Dedicated = true
	return c.PinnedMemory()
}

// Listener accepts connections. Its methods may be called at once. Handshakes
// go on in the background, so that dialers need not wait for Accept. Of one that
// fails the dialer gets the error, and Stats counts it.
type Listener struct {
	listener fabric.Listener
	config   *Config
	trace    *Trace
	link     link.Config
	claims   *claims // nil: the listener gives no proof of links
	addr     Addr
	deadline *deadline.Deadline
	ctx      context.Context // ends handshakes when the listener is closed
	cancel   context.CancelFunc

	pending  chan struct{} // one for each link of which no connection has been accepted yet
	backlog  chan struct{} // one for each connection shaking hands or in accepted
	accepted chan waiting
	peersMax int           // bytes that pending links may take for their dialers
	failed   chan struct{} // closed when serve has ended
	err      error         // why; set before failed is closed
	stats    listenerStats

	mu         sync.Mutex // guards what follows
	closed     bool
	forPeers   int // bytes that pending links take for their dialers
	handshakes handshakes
	empty      map[*incoming]*link.Link // on which no connection has begun yet
	ended      sync.WaitGroup           // of handshakes; added to while not closed
}

var _ net.Listener = (*Listener)(nil)

// Accept waits for the next connection, until the deadline, and returns it: a
// *[Conn]. After Close it returns an error for which errors.Is(err,
// net.ErrClosed) holds. Other errors than os.ErrDeadlineExceeded mean that the
// listener will not accept any more.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.accept()
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: l.addr.Network(), Addr: l.addr, Err: err}
	}
	l.stats.accepted(l.addr.Network())
	l.trace.accepted(c)
	return c, nil
}

// Stats returns a snapshot of the listener's counters. It works after Close.
func (l *Listener) Stats() ListenerStats { return l.stats.snapshot() }

func (l *Listener) accept() (*Conn, error) {
	if l.ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	if l.deadline.Expired() {
		return nil, os.ErrDeadlineExceeded
	}
	select {
	case w := <-l.accepted:
		<-l.backlog
		if w.first != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.end(w.first)
		}
		return w.conn, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	case <-l.failed:
		return nil, l.err
	case <-l.deadline.Done():
		return nil, os.ErrDeadlineExceeded
	}
}

// Addr is the address listened on, an [Addr], with the port in use.
func (l *Listener) Addr() net.Addr { return l.addr }

// SetDeadline makes Accept fail with os.ErrDeadlineExceeded from t on, an Accept
// under way included. The zero time means never.
func (l *Listener) SetDeadline(t time.Time) error {
	if l.ctx.Err() != nil {
		return &net.OpError{Op: "set", Net: l.addr.Network(), Addr: l.addr, Err: net.ErrClosed}
	}
	l.deadline.Set(t)
	return nil
}

// Close stops listening. Connections that Accept has not returned are reset;
// those it has returned live on.
func (l *Listener) Close() error {
	l.mu.Lock()
	wasClosed := l.closed
	l.closed = true
	l.endEmpty()
	l.mu.Unlock()
	if wasClosed {
		return &net.OpError{Op: "close", Net: l.addr.Network(), Addr: l.addr, Err: net.ErrClosed}
	}
	l.cancel()
	err := l.listener.Close()
	l.deadline.Set(time.Time{})
	l.ended.Wait()
	for {
		select {
		case w := <-l.accepted:
			reset(w.conn)
		default:
			return err
		}
	}
}

func reset(c interface {
	SetLinger(sec int) error
	Close() error
}) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// serve answers connection requests until the fabric's listener fails, which
// it does when closed.
func (l *Listener) serve() {
	defer close(l.failed)
	for {
		ep, err := l.listener.Accept()
		if err != nil {
			l.err = listenerError(err)
			return
		}
		in, refusal := l.begin(memoryForPeer(ep))
		if in == nil {
			_ = ep.Reject(refusal.Append(nil))
			_ = ep.Close()
			continue
		}
		go l.handshake(ep, in)
	}
}

// listenerError gives what a fabric says about the end of its listener the errno
// that connections give.
func listenerError(err error) error {
	if errors.Is(err, fabric.ErrDeviceRemoved) {
		return fmt.Errorf("%w (%w)", syscall.ENETDOWN, err)
	}
	return err
}

// waiting is a connection that is not yet accepted.
type waiting struct {
	conn  *Conn
	first *incoming // the link, if it is the first on it
}
