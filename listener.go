package ringnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// ListenConfig has the options of Listen. The zero ListenConfig means the defaults. A
// ListenConfig may be used by several goroutines at once, and must not change
// while it is used.
type ListenConfig struct {
	// TrustUser decides whether shm accepts a dialer of another user than this process's.
	// It is given the dialer's effective user ID, as this process's user namespace numbers
	// users. nil accepts no other user, not even root. Several goroutines may call it at
	// once.
	TrustUser func(uid uint32) bool

	// TCP has options of the TCP listener of "auto": Control, KeepAliveConfig,
	// Multipath TCP. nil means the defaults.
	TCP *net.ListenConfig

	// Require names networks that are better than TCP: "shm", "rdma". If "auto" cannot
	// offer one of them, Listen fails, and the error has the reasons.
	Require []string

	// Trace has functions to call for accepted connections and for their links. nil
	// means none.
	Trace *Trace

	// Config is for this end of the accepted connections; nil means the defaults.
	Config *Config

	// Backlog is how many connections may be in their handshake or wait for Accept. The
	// listener refuses more, and their dialers ask again a little later. 0 means the
	// default, 4096. The maximum is 65536, and larger values mean that. Negative is an
	// error.
	Backlog int

	// PendingMemory limits, in bytes, the memory for links of which Accept has returned no
	// connection yet. It limits two sums separately: the memory that this end's Config asks
	// for, where one link is always allowed; and, over shm, the memory that dialers ask
	// this end to make for them. The listener refuses for good a dialer that alone asks for
	// more. 0 means the default, 256 MiB, enough for 121 links of default size, where each
	// counts as if it were dedicated to one connection. Negative is an error.
	//
	// On "auto", Backlog and PendingMemory apply to shm and to rdma separately.
	PendingMemory int
}

const (
	defaultBacklog       = 4096
	maxBacklog           = 1 << 16
	defaultPendingMemory = 256 << 20
)

// Listen listens at an address of the named network: "auto", "auto4", "auto6", "rdma",
// "rdma4", "rdma6" or "shm". The address has the form "host:port", as for net.Listen.
// Without a host it means all addresses of this machine. Port 0, or no port, means a free
// one; the listener's Addr tells which.
//
// The net.Listener is an *[AutoListener] on "auto", "auto4" and "auto6", and a *[Listener]
// on the other networks. The error is a *net.OpError: errors.Is finds
// errors.ErrUnsupported where this host cannot use the network, and syscall.EADDRINUSE
// where another socket has the port.
func Listen(network, address string) (net.Listener, error) {
	return (&ListenConfig{}).Listen(context.Background(), network, address)
}

// Listen listens at an address of the named network. ctx limits how long the address may
// take to be resolved; the listener does not depend on it. See the function [Listen].
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	address = cmp.Or(address, ":0") // as net.Listen has it
	var addr net.Addr
	n, known := networks[network]
	n = n.here()
	switch {
	case !known:
		err = unknownNetwork(network)
	case n.carrier == overAuto:
		l, addr, err = lc.listenAuto(ctx, n, address)
	default:
		l, addr, err = lc.listenAlone(ctx, n, address)
	}
	if err != nil {
		return nil, opError("listen", network, nil, addr, contextError(err))
	}
	return l, nil
}

// listenAlone listens on a network of one fabric, with a queue of its own. If it fails it also
// returns the address at which.
func (lc *ListenConfig) listenAlone(ctx context.Context, n network, address string) (*Listener, net.Addr, error) {
	most, err := lc.places()
	if err != nil {
		return nil, nil, err
	}
	addr, err := n.resolveLocal(ctx, address)
	if err != nil {
		return nil, nil, err
	}
	queue := auto.NewQueue()
	l, err := lc.listen(n, addr, most, arrivals{
		queue:  queue,
		accept: auto.AcceptUnproven,
		failed: func(_ *Listener, err error) { queue.Fail(err) },
	})
	if err == nil {
		go l.serve()
	}
	return l, rconn.NewAddr(n.name, addr), err
}

// arrivals says what a listener does with what arrives. A listener of auto has its own for those
// of which it consists.
type arrivals struct {
	queue  *auto.Queue
	accept func(context.Context, fabric.Endpoint, link.Setup) (*link.Link, *link.Stream, error) // answers a request for a link
	failed func(*Listener, error)                                                               // is called when it accepts no more
}

// listen listens on a network of one fabric. Requests wait until serve is called.
func (lc *ListenConfig) listen(n network, addr netip.AddrPort, most places, arrivals arrivals) (*Listener, error) {
	cfg, err := link.NewSetup((*link.Config)(lc.Config))
	if err != nil {
		return nil, err
	}
	f, err := n.open(lc.TrustUser, lc.Config)
	if err != nil {
		return nil, err
	}
	fl, err := f.Listen(n.family.ListenOn(addr), most.maxLinks)
	if err != nil {
		return nil, err
	}
	completeLink(&cfg, n, f)
	l := &Listener{
		addr:     rconn.NewAddr(n.name, fl.Addr()),
		listener: fl,
		link:     cfg,
		trace:    lc.Trace,
		arrivals: arrivals,
		places:   most,
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// places returns the places that a listener has, none of which is taken.
func (lc *ListenConfig) places() (places, error) {
	if err := lc.Config.Validate(); err != nil {
		return places{}, err
	}
	if lc.Backlog < 0 {
		return places{}, fmt.Errorf("ListenConfig.Backlog is %d: want a positive number, or 0 for the default of %d", lc.Backlog, defaultBacklog)
	}
	if lc.PendingMemory < 0 {
		return places{}, fmt.Errorf("ListenConfig.PendingMemory is %d: want a positive number, or 0 for the default of %d", lc.PendingMemory, defaultPendingMemory)
	}
	backlog := min(cmp.Or(lc.Backlog, defaultBacklog), maxBacklog)
	memory := cmp.Or(lc.PendingMemory, defaultPendingMemory)
	return places{
		maxConnections: backlog,
		maxLinks:       max(1, min(backlog, memory/lc.linkMemory())),
		maxForPeers:    memory,
	}, nil
}

// linkMemory returns the most bytes that this end of a link pins at first. The dialer
// decides whether a link is dedicated, which takes more, so it counts as dedicated.
func (lc *ListenConfig) linkMemory() int {
	var c Config
	if lc.Config != nil {
		c = *lc.Config
	}
	c.Dedicated = true
	return c.PinnedMemory()
}

// Listener accepts connections on one network; Listen returns it for "rdma" and "shm". Its
// methods may be called by several goroutines at once. Handshakes run in the background:
// dialers need not wait for Accept. When a handshake fails, the dialer gets the error, and
// Stats counts it.
type Listener struct {
	addr     Addr
	listener fabric.Listener
	link     link.Setup
	trace    *Trace
	arrivals arrivals
	stats    listenerStats
	ctx      context.Context // of the handshakes
	cancel   context.CancelFunc

	mu         sync.Mutex // guards what follows
	closed     bool
	places     places
	handshakes handshakes
	ended      sync.WaitGroup // counts handshakes; added to only while not closed
}

var _ net.Listener = (*Listener)(nil)

// Accept waits for the next connection, until the deadline, and returns it: a *[Conn],
// which the caller closes. The error is a *net.OpError. errors.Is finds
// os.ErrDeadlineExceeded in it after the deadline, and net.ErrClosed after Close. After any
// other error the listener accepts no more connections, for example with
// syscall.ENETDOWN when its device is gone.
func (l *Listener) Accept() (net.Conn, error) {
	a, err := l.arrivals.queue.Next()
	if err != nil {
		return nil, l.opError("accept", err)
	}
	l.stats.accepted(l.addr.Network())
	l.trace.accepted(a.Conn)
	return a.Conn, nil
}

// Stats returns a snapshot of the listener's counters. It works after Close, too.
func (l *Listener) Stats() ListenerStats { return l.stats.snapshot() }

// Addr returns the address that the listener listens at: an [Addr] with the port in use.
func (l *Listener) Addr() net.Addr { return l.addr }

// SetDeadline makes Accept fail with os.ErrDeadlineExceeded from t on, also an Accept that
// is waiting. The zero time means no deadline. After Close the error is net.ErrClosed.
func (l *Listener) SetDeadline(t time.Time) error {
	return l.opError("set", l.arrivals.queue.SetDeadline(t))
}

// Close stops listening. It resets the connections that Accept has not returned; those
// that it has returned go on, and their links end with the last of them. A second Close
// returns net.ErrClosed.
func (l *Listener) Close() error {
	l.arrivals.queue.Close()
	err := l.stop()
	l.arrivals.queue.Reset()
	return l.opError("close", err)
}

// refuse accepts no connection any more, also on links that are up, whose peers it tells so. Requests
// for links are to be made again, and find no listener then, or another.
func (l *Listener) refuse() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	link.Retire(func(a link.Acceptor) bool {
		in, ok := a.(*incoming)
		return ok && in.listener == l
	})
}

// stop stops listening, and leaves the queue as it is. When it returns, nothing comes to the
// queue any more.
func (l *Listener) stop() error {
	l.refuse()
	l.cancel()
	err := l.listener.Close()
	l.ended.Wait()
	l.refuse() // on the links that were made meanwhile
	return err
}

// opError wraps what went wrong in an operation of the listener.
func (l *Listener) opError(op string, err error) error {
	return opError(op, l.addr.Network(), nil, l.addr, err)
}

// serve answers connection requests until the fabric's listener fails, which it also does
// when it is closed.
func (l *Listener) serve() {
	for {
		ep, err := l.listener.Accept()
		if err != nil {
			l.arrivals.failed(l, listenerError(err))
			return
		}
		in, refusal := l.begin(sourceOf(ep), memoryForPeer(ep))
		if in == nil {
			_ = ep.Reject(refusal.Append(nil))
			_ = ep.Close()
			continue
		}
		go l.handshake(ep, in)
	}
}

// listenerError adds the errno that connections give to a fabric's error about the end of
// its listener.
func listenerError(err error) error {
	if errors.Is(err, fabric.ErrDeviceRemoved) {
		return fmt.Errorf("%w (%w)", syscall.ENETDOWN, err)
	}
	return err
}
