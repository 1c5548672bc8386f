package auto

// A listener on TCP and on the better networks: one port, one queue.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hostport"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/transport"
)

// ListenConfig says how to listen.
type ListenConfig struct {
	transport.ListenConfig // on the better networks; its Backlog is also how many TCP connections may wait while links are to be proven
	Steering
	Networks []*transport.Network // those of Steering.Better
	Require  []string             // networks that have to be offered
	TCP      *net.ListenConfig    // nil means the defaults
	Times    Times
}

// Listener accepts connections over TCP and over better networks, all on one port, in one queue.
type Listener struct {
	*transport.Queue
	TCP    *net.TCPListener
	steer  Steering
	events transport.Events
	claims *claims
	better []*transport.Listener // on the better networks
	served sync.WaitGroup        // counts serveTCP

	mu         sync.Mutex // guards what follows
	passedOver map[string]error
	backlog    int
	waiting    int       // TCP connections and errors in the queue
	room       sync.Cond // of mu; signaled when hasRoom may have changed
}

// triedPorts is how many free ports of TCP are tried for one that is also free on the better
// networks.
const triedPorts = 16

// Listen listens on TCP and on the same port of each better network. Each network has ports of
// its own, so another process may have this one there. It also returns the address, with the
// port that it has found if there was none.
func (lc *ListenConfig) Listen(ctx context.Context, addr netip.AddrPort) (*Listener, netip.AddrPort, error) {
	for try := 1; ; try++ {
		l := lc.newListener()
		at, err := l.listen(ctx, lc, addr)
		if err == nil {
			return l, at, nil
		}
		_ = l.Close()
		if addr.Port() != 0 || !errors.Is(err, syscall.EADDRINUSE) || try == triedPorts {
			return nil, at, err
		}
	}
}

// listen binds TCP first if it has to find a port. Else it binds TCP last, so that a dialer that
// finds TCP finds the better networks, too.
func (l *Listener) listen(ctx context.Context, lc *ListenConfig, addr netip.AddrPort) (netip.AddrPort, error) {
	if addr.Port() == 0 {
		if err := l.listenTCP(ctx, lc, addr); err != nil {
			return addr, err
		}
		addr = netip.AddrPortFrom(addr.Addr(), plain(l.TCP.Addr()).Port())
	}
	for _, n := range lc.Networks {
		if err := l.offer(lc, n, addr); errors.Is(err, syscall.EADDRINUSE) {
			return addr, fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	if l.TCP == nil {
		if err := l.listenTCP(ctx, lc, addr); err != nil {
			return addr, err
		}
	}
	if err := l.checkRequired(lc.Require); err != nil {
		return addr, err
	}
	l.serve()
	return addr, nil
}

// ListenOn listens on the better networks at the address of a TCP listener, as far as they have
// its port free. If it fails, tcp stays open.
func (lc *ListenConfig) ListenOn(tcp *net.TCPListener) (*Listener, error) {
	lc.Family = familyOf(tcp)
	l := lc.newListener()
	for _, n := range lc.Networks {
		_ = l.offer(lc, n, plain(tcp.Addr()))
	}
	if err := l.checkRequired(lc.Require); err != nil {
		_ = l.Close()
		return nil, err
	}
	l.TCP = tcp
	l.serve()
	return l, nil
}

// serve has all networks accept connections.
func (l *Listener) serve() {
	for _, better := range l.better {
		better.Serve()
	}
	l.served.Go(l.serveTCP)
}

// newListener returns a listener that listens nowhere yet.
func (lc *ListenConfig) newListener() *Listener {
	l := &Listener{
		Queue: transport.NewQueue(), steer: lc.Steering, events: lc.Events,
		passedOver: make(map[string]error), backlog: lc.Backlog,
	}
	l.room.L = &l.mu
	namespace, _ := lc.Namespace.Enter() // or else shm does not listen either
	l.claims = &claims{
		giveBack:  l.queueTCP,
		added:     l.look,
		within:    lc.Times.Proof,
		namespace: namespace,
		open:      make(map[ends]*claim),
	}
	for _, name := range BetterThanTCP {
		if !slices.Contains(lc.Better, name) {
			l.passedOver[name] = ErrOff
		}
	}
	return l
}

// listenTCP listens on TCP, with the options in lc.TCP.
func (l *Listener) listenTCP(ctx context.Context, lc *ListenConfig, addr netip.AddrPort) error {
	config := cmp.Or(lc.TCP, new(net.ListenConfig))
	tcp, err := config.Listen(ctx, "tcp"+strings.TrimPrefix(string(lc.Family), "ip"), hostPort(addr))
	if err != nil {
		return causeOf(err)
	}
	l.TCP = tcp.(*net.TCPListener)
	return nil
}

// hostPort returns an address as package net wants it. Without a host it means all addresses of
// both families.
func hostPort(addr netip.AddrPort) string {
	if addr.Addr() == netip.IPv6Unspecified() {
		return ":" + strconv.Itoa(int(addr.Port()))
	}
	return addr.String()
}

// familyOf returns the family of the addresses that a TCP listener listens at.
func familyOf(tcp *net.TCPListener) hostport.Family {
	switch plain(tcp.Addr()).Addr() {
	case netip.IPv4Unspecified():
		return "ip4"
	case netip.IPv6Unspecified():
		if isIPv6Only(tcp) {
			return "ip6"
		}
	}
	return "ip"
}

// offer listens on a better network at the address of TCP, and of no family that TCP does not
// listen on. If it fails, it records why.
func (l *Listener) offer(lc *ListenConfig, n *transport.Network, addr netip.AddrPort) error {
	better, err := lc.ListenFor(l, l.Queue, n, addr)
	if err != nil {
		l.passOver(n.Name, err)
		return err
	}
	l.better = append(l.better, better)
	return nil
}

// Networks returns the names of the networks on which l listens or has listened.
func (l *Listener) Networks() []string {
	names := []string{"tcp"}
	for _, better := range l.better {
		names = append(names, better.Network())
	}
	return names
}

// checkRequired returns an error if the listener does not offer all of the networks.
func (l *Listener) checkRequired(networks []string) error {
	missing := slices.DeleteFunc(l.PassedOver("tcp"), func(f Failure) bool { return !slices.Contains(networks, f.Network) })
	if len(missing) > 0 {
		return &RequiredError{missing}
	}
	return nil
}

// PassedOver returns why the listener does not offer a network that is better than the one that
// carries a connection, or has stopped offering it, the best network first.
func (l *Listener) PassedOver(carrier string) (failures PassedOver) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, network := range BetterThanTCP {
		if err := l.passedOver[network]; err != nil && l.steer.isBetter(network, carrier) {
			failures = append(failures, Failure{Network: network, Err: err})
		}
	}
	return failures
}

// passOver notes why the listener does not offer a better network, or has stopped offering it. When
// the listener is closed there is nothing to note.
func (l *Listener) passOver(network string, err error) {
	if l.Closed() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passedOver[network] = err
}

// AcceptLink implements [transport.Answerer]. If a link is to be proven, AcceptLink returns it when it
// is.
func (l *Listener) AcceptLink(ctx context.Context, ep fabric.Endpoint, setup link.Setup) (*link.Link, *link.Stream, error) {
	return l.claims.accept(ctx, ep, setup)
}

// ListenerFailed implements [transport.Answerer]: l goes on without the network.
func (l *Listener) ListenerFailed(better *transport.Listener, err error) {
	l.passOver(better.Network(), err)
	_ = better.Stop() // dialers are refused there at once, and take TCP
}

// serveTCP queues the connections that TCP accepts and no link claims. If TCP's listener fails,
// the whole listener does.
func (l *Listener) serveTCP() {
	for failed := false; l.awaitRoom(failed); {
		c, err := l.TCP.AcceptTCP()
		temporary, ok := err.(interface{ Temporary() bool })
		switch failed = err != nil; {
		case !failed && l.claims.meet(c):
		case !failed:
			l.queueTCP(c)
		case ok && temporary.Temporary():
			l.pushTCP(transport.Accepted{Err: causeOf(err)})
		default:
			l.Queue.Fail(causeOf(err))
			return
		}
	}
}

// awaitRoom waits until another TCP connection may be accepted, and returns false when the
// listener is closed.
func (l *Listener) awaitRoom(afterError bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.Closed() && !l.hasRoom(afterError) {
		l.room.Wait()
	}
	return !l.Closed()
}

// hasRoom reports whether another TCP connection may be accepted. One at a time waits for Accept:
// the others are better off in the kernel, where another process may accept them when this one
// ends. While there are claims, as many as the backlog allows wait, for the connections that are
// claimed may be queued in the kernel behind them; but not after an error, which TCP would return
// again at once. Called with mu held.
func (l *Listener) hasRoom(afterError bool) bool {
	return l.waiting == 0 || !afterError && l.waiting <= l.backlog && l.claims.any()
}

// look has awaitRoom look again whether there is room.
func (l *Listener) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.room.Broadcast()
}

// queueTCP has Accept return a TCP connection.
func (l *Listener) queueTCP(c *net.TCPConn) {
	l.pushTCP(transport.Accepted{Conn: l.events.OpenedTCP(c)})
}

// pushTCP adds what TCP has accepted to the queue.
func (l *Listener) pushTCP(a transport.Accepted) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting++
	a.Taken = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.waiting--
		l.room.Broadcast()
	}
	l.Push(a)
}

// Close stops listening on all networks: first none accepts anything, then TCP's port is free for
// another process, and then the others' are. It resets the connections that wait. A second Close
// returns net.ErrClosed.
func (l *Listener) Close() error {
	if !l.Queue.Close() {
		return net.ErrClosed
	}
	l.look()
	for _, better := range l.better {
		better.Refuse()
	}
	var errs []error
	if l.TCP != nil {
		errs = append(errs, l.TCP.Close())
	}
	for _, better := range l.better {
		errs = append(errs, better.Stop())
	}
	l.served.Wait()
	l.claims.namespace.Close()
	l.Reset()
	for _, err := range errs {
		// Those that have failed are closed already.
		if err != nil && !errors.Is(err, net.ErrClosed) {
			return causeOf(err)
		}
	}
	return nil
}
