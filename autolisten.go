package ringnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/ringnet/ringnet/rconn"
)

// triedPorts is how many free ports of TCP are tried for one that is also free on shm and
// rdma.
const triedPorts = 16

// listenAuto listens on TCP and on the same port of each better network. Each network has
// ports of its own, so another process may have this one there.
func (lc *ListenConfig) listenAuto(ctx context.Context, network, address string) (*AutoListener, net.Addr, error) {
	n := autoNetworks[network]
	addr, err := n.resolveLocal(ctx, address)
	if err != nil {
		return nil, nil, err
	}
	for try := 1; ; try++ {
		l, at, err := lc.listenOnAll(ctx, n, addr)
		if err == nil || addr.Port() != 0 || !errors.Is(err, syscall.EADDRINUSE) || try == triedPorts {
			return l, at, err
		}
	}
}

// listenOnAll binds TCP first if it has to find a port. Else it binds TCP last, so that a
// dialer that finds TCP finds the better networks, too.
func (lc *ListenConfig) listenOnAll(ctx context.Context, n network, addr netip.AddrPort) (_ *AutoListener, _ net.Addr, err error) {
	l, steering, err := lc.newAutoListener()
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = l.Close()
		}
	}()
	listenTCP := func() error {
		tcp, err := lc.listenTCP(ctx, n, addr)
		if err == nil {
			l.tcp = tcp
			addr = netip.AddrPortFrom(addr.Addr(), plain(tcp.Addr()).Port())
		}
		return err
	}
	if addr.Port() == 0 {
		if err := listenTCP(); err != nil {
			at, err := unwrapOp(err)
			return nil, at, err
		}
	}
	for _, name := range steering.better {
		if err := l.offer(ctx, lc, name, n.family, addr); errors.Is(err, syscall.EADDRINUSE) {
			return nil, rconn.NewAddr("auto", addr), fmt.Errorf("%s: %w", name, err)
		}
	}
	if l.tcp == nil {
		if err := listenTCP(); err != nil {
			at, err := unwrapOp(err)
			return nil, at, err
		}
	}
	if err := l.checkRequired(lc.Require); err != nil {
		return nil, rconn.NewAddr("auto", addr), err
	}
	l.start()
	return l, nil, nil
}

// ListenOn listens on "auto" at the address of a TCP listener that exists already, for
// example one that a service manager or an earlier process has passed on. If it succeeds,
// the AutoListener owns tcp and closes it; if it fails, tcp stays the caller's. Where another
// socket has the port of a better network, the listener does not offer that network, and
// PassedOver says so; that socket still gets none of the connections that TCP brings here.
// The error is a *net.OpError.
func (lc *ListenConfig) ListenOn(tcp *net.TCPListener) (*AutoListener, error) {
	addr := plain(tcp.Addr())
	l, steering, err := lc.newAutoListener()
	if err == nil {
		family := familyOf(tcp)
		for _, name := range steering.better {
			_ = l.offer(context.Background(), lc, name, family, addr)
		}
		if err = l.checkRequired(lc.Require); err != nil {
			_ = l.Close()
		}
	}
	if err != nil {
		return nil, opError("listen", "auto", nil, rconn.NewAddr("auto", addr), err)
	}
	l.tcp = tcp
	l.start()
	return l, nil
}

// newAutoListener returns a listener that listens nowhere yet, and the networks that it is to
// offer.
func (lc *ListenConfig) newAutoListener() (*AutoListener, steering, error) {
	most, err := lc.places()
	if err != nil {
		return nil, steering{}, err
	}
	if err := checkRequired("ListenConfig.Require", lc.Require); err != nil {
		return nil, steering{}, err
	}
	s, err := steer()
	if err != nil {
		return nil, s, err
	}
	l := &AutoListener{
		autoAcceptor: newAcceptor[accepted](0),
		parked:       make(chan struct{}, most.maxConnections),
		trace:        lc.Trace,
		passedOver:   make(map[string]error),
	}
	l.claims = newClaims(func(c *net.TCPConn) {
		l.serving.Go(func() { l.hand(accepted{conn: newTCPConn(c, l.trace, false)}) })
	})
	for _, name := range s.off {
		l.passOver(name, errOff)
	}
	return l, s, nil
}

// listenTCP listens on TCP, with the options in lc.TCP.
func (lc *ListenConfig) listenTCP(ctx context.Context, n network, addr netip.AddrPort) (*net.TCPListener, error) {
	config := lc.TCP
	if config == nil {
		config = new(net.ListenConfig)
	}
	l, err := config.Listen(ctx, "tcp"+strings.TrimPrefix(n.family, "ip"), hostPort(addr))
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// hostPort returns an address as package net wants it. Without a host it means all
// addresses of both families.
func hostPort(addr netip.AddrPort) string {
	if addr.Addr() == netip.IPv6Unspecified() {
		return ":" + strconv.Itoa(int(addr.Port()))
	}
	return addr.String()
}

// familyOf returns the family of the addresses that a TCP listener listens at, in the words
// of network.family.
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

// offer listens on a better network at the address of TCP, and of no family that TCP does
// not listen on. If it fails, it records why.
func (l *AutoListener) offer(ctx context.Context, lc *ListenConfig, name, family string, addr netip.AddrPort) error {
	var better *Listener
	n, err := lookupNetwork(name)
	if err == nil {
		n.family = family
		better, _, err = lc.listen(ctx, n.besideTCP(), hostPort(addr), l.claims)
	}
	if err != nil {
		l.passOver(name, err)
		return err
	}
	l.better = append(l.better, better)
	return nil
}

// checkRequired returns an error, with the reasons, if the listener does not offer all of the
// networks.
func (l *AutoListener) checkRequired(networks []string) error {
	var reasons []Reason
	for _, r := range l.PassedOver() {
		if slices.Contains(networks, r.Network) {
			reasons = append(reasons, r)
		}
	}
	if len(reasons) > 0 {
		return &requiredError{reasons}
	}
	return nil
}
