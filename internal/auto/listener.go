package auto

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
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/netns"
)

// ListenConfig says how to listen.
type ListenConfig struct {
	Steering
	Require []string          // networks that have to be offered
	TCP     *net.ListenConfig // nil means the defaults
	Backlog int               // how many TCP connections may wait for Accept while links are to be proven
	Times   Times

	// Offer listens on a better network at an address of a family, "ip", "ip4" or "ip6", for
	// a Listener: it adds connections to its Queue, has its AcceptLink answer requests, and
	// tells its PassOver if it fails later.
	Offer func(network, family string, addr netip.AddrPort, l *Listener) (*Part, error)

	Wrap func(*net.TCPConn) Conn // makes a connection that TCP carries
}

// Part listens on a better network for a Listener. Nothing is accepted on one network before the
// Listener listens on all, nor after it has begun to close on one.
type Part struct {
	Serve  func()       // answers requests from now on; until then they wait
	Refuse func()       // accepts nothing any more, also on links that are up
	Stop   func() error // does that, and stops listening
}

// Listener accepts connections over TCP and over better networks, all on one port, in one queue.
type Listener struct {
	*Queue
	TCP    *net.TCPListener
	steer  Steering
	wrap   func(*net.TCPConn) Conn
	claims *claims
	parts  []*Part        // of the better networks
	served sync.WaitGroup // counts serveTCP

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
func (lc *ListenConfig) Listen(ctx context.Context, family string, addr netip.AddrPort) (*Listener, netip.AddrPort, error) {
	for try := 1; ; try++ {
		l := lc.newListener()
		at, err := l.listen(ctx, lc, family, addr)
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
func (l *Listener) listen(ctx context.Context, lc *ListenConfig, family string, addr netip.AddrPort) (netip.AddrPort, error) {
	if addr.Port() == 0 {
		if err := l.listenTCP(ctx, lc, family, addr); err != nil {
			return addr, err
		}
		addr = netip.AddrPortFrom(addr.Addr(), plain(l.TCP.Addr()).Port())
	}
	for _, name := range lc.Better {
		if err := l.offer(lc, name, family, addr); errors.Is(err, syscall.EADDRINUSE) {
			return addr, fmt.Errorf("%s: %w", name, err)
		}
	}
	if l.TCP == nil {
		if err := l.listenTCP(ctx, lc, family, addr); err != nil {
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
	l := lc.newListener()
	family := familyOf(tcp)
	for _, name := range lc.Better {
		_ = l.offer(lc, name, family, plain(tcp.Addr()))
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
	for _, part := range l.parts {
		part.Serve()
	}
	l.served.Go(l.serveTCP)
}

// newListener returns a listener that listens nowhere yet.
func (lc *ListenConfig) newListener() *Listener {
	l := &Listener{Queue: NewQueue(), steer: lc.Steering, wrap: lc.Wrap, passedOver: make(map[string]error), backlog: lc.Backlog}
	l.room.L = &l.mu
	namespace, _ := netns.Current().Enter() // or else shm does not listen either
	l.claims = &claims{
		giveBack:  func(c *net.TCPConn) { l.pushTCP(Accepted{Conn: l.wrap(c)}) },
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
func (l *Listener) listenTCP(ctx context.Context, lc *ListenConfig, family string, addr netip.AddrPort) error {
	config := cmp.Or(lc.TCP, new(net.ListenConfig))
	tcp, err := config.Listen(ctx, "tcp"+strings.TrimPrefix(family, "ip"), hostPort(addr))
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
func familyOf(tcp *net.TCPListener) string {
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
func (l *Listener) offer(lc *ListenConfig, network, family string, addr netip.AddrPort) error {
	part, err := lc.Offer(network, family, addr, l)
	if err != nil {
		l.PassOver(network, err)
		return err
	}
	l.parts = append(l.parts, part)
	return nil
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
func (l *Listener) PassedOver(carrier string) (failures []Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, network := range BetterThanTCP {
		if err := l.passedOver[network]; err != nil && l.steer.isBetter(network, carrier) {
			failures = append(failures, Failure{Network: network, Err: err})
		}
	}
	return failures
}

// PassOver notes why the listener does not offer a better network, or has stopped offering it. It
// goes on without. When it is closed there is nothing to note.
func (l *Listener) PassOver(network string, err error) {
	if l.Closed() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passedOver[network] = err
}

// AcceptLink answers a request for a link. If it is to be proven, AcceptLink returns it when it
// is.
func (l *Listener) AcceptLink(ctx context.Context, ep fabric.Endpoint, cfg link.Setup) (*link.Link, *link.Stream, error) {
	return l.claims.accept(ctx, ep, cfg)
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
			l.pushTCP(Accepted{Conn: l.wrap(c)})
		case ok && temporary.Temporary():
			l.pushTCP(Accepted{Err: causeOf(err)})
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

// pushTCP adds what TCP has accepted to the queue.
func (l *Listener) pushTCP(a Accepted) {
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
	for _, part := range l.parts {
		part.Refuse()
	}
	var errs []error
	if l.TCP != nil {
		errs = append(errs, l.TCP.Close())
	}
	for _, part := range l.parts {
		errs = append(errs, part.Stop())
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
