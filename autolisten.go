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

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/rconn"
)

// ports is how many free ports of TCP are tried for one that is free in every
// port space.
const ports = 16

// listenAuto announces on TCP and on the same port of each better network: their
// port spaces are their own, so somebody else might have it there.
func (lc *ListenConfig) listenAuto(ctx context.Context, network, address string) (*AutoListener, net.Addr, error) {
	n := autoNetworks[network]
	addrs, err := n.resolve(ctx, net.DefaultResolver, address, n.wildcard())
	if err != nil {
		return nil, nil, err
	}
	addr := preferIPv4(addrs)
	for try := 1; ; try++ {
		l, at, err := lc.listenOnAll(ctx, n, addr)
		if err == nil || addr.Port() != 0 || !errors.Is(err, syscall.EADDRINUSE) || try == ports {
			return l, at, err
		}
	}
}

// listenOnAll binds TCP first if it has to find a port, and last if it does not:
// then dialers who find TCP find the better networks, too.
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
			at, err := bare(err)
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
			at, err := bare(err)
			return nil, at, err
		}
	}
	if err := l.checkRequired(lc.Require); err != nil {
		return nil, rconn.NewAddr("auto", addr), err
	}
	l.start()
	return l, nil, nil
}

// ListenOn announces "auto" on the address of a TCP listener that exists already,
// as a service manager or an earlier process has left it, and takes the listener
// over. A better network whose port is in use is passed over: the socket that has it
// does not get connections that TCP would have brought here.
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
		return nil, &net.OpError{Op: "listen", Net: "auto", Addr: rconn.NewAddr("auto", addr), Err: err}
	}
	l.tcp = tcp
	l.start()
	return l, nil
}

func (lc *ListenConfig) newAutoListener() (*AutoListener, steering, error) {
	backlog, _, err := lc.pending()
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
		parked:   make(chan struct{}, backlog),
		deadline: deadline.New(),
		accepted: make(chan accepted),
		closed:   make(chan struct{}),
		failed:   make(chan struct{}),
		trace:    lc.Trace,

		passedOver: make(map[string]error),
	}
	l.claims = newClaims(func(c *net.TCPConn) {
		l.serving.Go(func() { l.hand(accepted{conn: newTCPConn(c, l.trace, false)}) })
	})
	for _, name := range s.off {
		l.passOver(name, errOff)
	}
	return l, s, nil
}

// listenTCP announces on TCP.
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

// hostPort is an address as package net wants it, with no host for all of both
// families.
func hostPort(addr netip.AddrPort) string {
	if addr.Addr() == netip.IPv6Unspecified() {
		return ":" + strconv.Itoa(int(addr.Port()))
	}
	return addr.String()
}

// familyOf is that of a TCP listener at all addresses, as network.family has it.
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

// offer listens on a better network, at all addresses of no other family than TCP,
// or records why it does not.
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

// checkRequired returns an error if one of the networks is not offered.
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
