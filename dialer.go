package ringnet

// Dial, and its options.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"
	"weak"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/hostport"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/netns"
	"github.com/ringnet/ringnet/internal/transport"
)

// autoTimes is a variable because tests change it.
var autoTimes = auto.DefaultTimes

// failures are what auto remembers in this process.
var failures = new(auto.Failures)

// Dialer has the options of Dial. The zero Dialer means the defaults. A Dialer may be used by
// several goroutines at once, and must not change while it is used.
type Dialer struct {
	// Timeout limits a whole dial, with name resolution and handshake. If the name has
	// several addresses, each gets a share of the time. Zero means that only the steps
	// have limits: 5 s for the address and 5 s for the route, Config.HandshakeTimeout for a
	// host that does not answer, and 30 s for a listener whose backlog is full.
	//
	// A dial repeats its request to a listener whose backlog is full, as TCP repeats its
	// SYN. If its time ends there, the error is both a timeout and ECONNREFUSED. Over rdma
	// a process has at most 64 requests under way, at most 16 of them to one host. Other
	// dials wait for their turn; if the time of one ends there, the error is a timeout, and
	// says how many others were ahead.
	Timeout time.Duration

	// Deadline is the time at which a dial fails, whatever Timeout is. Zero means none.
	Deadline time.Time

	// LocalAddr is the address to dial from: an [Addr], a *net.TCPAddr, a *net.UDPAddr, or
	// any other net.Addr with a method AddrPort. nil lets the system choose.
	LocalAddr net.Addr

	// Resolver resolves names; nil means net.DefaultResolver.
	Resolver *net.Resolver

	// TrustUser decides whether shm connects to a listener of another user than this
	// process's user and root. It is given the listener's effective user ID, as this
	// process's user namespace numbers users. nil trusts no other user. Several goroutines
	// may call it at once, and also when no dial is under way: for the links that are made
	// beside the first (Config.Links).
	TrustUser func(uid uint32) bool

	// TCP has options of the TCP connections that "auto" dials: Control, KeepAliveConfig,
	// Multipath TCP, and FallbackDelay, which applies to shm and rdma too. Its Timeout and
	// Deadline limit TCP alone. Its LocalAddr and Resolver apply to all networks, unless
	// this Dialer sets its own. nil means the defaults.
	TCP *net.Dialer

	// Require names networks that are better than TCP: "shm", "rdma". If none of them
	// carries the connection, a dial of "auto" fails, and the error has the reasons. Empty
	// means that TCP may carry it.
	Require []string

	// ForTCP names the network to dial when the caller asks for "tcp", as most libraries
	// do: "auto", "rdma" or "shm". The connection is an *[AutoConn], whose addresses are
	// those of package net. "tcp4" and "tcp6" mean that network with the same digit; shm has
	// none with a digit. Networks of package net other than TCP, such as "unix" and "udp",
	// are then dialed by package net with the options in TCP, and return its connections and
	// errors. If ForTCP is empty, all of these networks are unknown.
	ForTCP string

	// Trace has functions to call for dials, and for the connections and links that they
	// make. nil means none.
	Trace *Trace

	// Config is for this end of the connections; nil means the defaults.
	Config *Config
}

// Dial connects to an address on the named network:
//
//   - auto, auto4, auto6: the net.Conn is an *[AutoConn].
//   - rdma, rdma4, rdma6, shm: it is a *[Conn], or an *AutoConn for [Dialer].ForTCP.
//
// The address has the form "host:port", as for net.Dial. The host is a name or an IP address,
// with a zone where it needs one; without a host it is this host. The port is a number or the
// name of a service. Dial returns when the listener has accepted the connection in the
// background; its program need not have called Accept.
//
// The caller closes the connection. The error is a *net.OpError: errors.Is finds
// syscall.ECONNREFUSED where no listener has the address, errors.ErrUnsupported where this
// host cannot use the network, syscall.ENOMEM where memory is short. docs/troubleshoot.md
// has the others.
func Dial(network, address string) (net.Conn, error) {
	return (&Dialer{}).Dial(network, address)
}

// DialTimeout does what Dial does, with a limit on the time: see [Dialer].Timeout.
func DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	return (&Dialer{Timeout: timeout}).Dial(network, address)
}

// Dial connects to the address on the named network. See the function [Dial].
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to the address on the named network. It fails when ctx ends before
// there is a connection; a connection does not depend on ctx. See the function [Dial].
//
// Hooks of net/http/httptrace in ctx are called: ConnectStart and ConnectDone once for each address
// that is dialed, with the network that was asked for, also where the connection begins on a link that
// is up.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	began := time.Now()
	c, err = d.dialNamed(ctx, network, address)
	reportDial(d.Trace, network, address, time.Since(began), c, err)
	return c, err
}

// dialNamed connects to the address on the network that the caller asks for.
func (d *Dialer) dialNamed(ctx context.Context, asked, address string) (c net.Conn, err error) {
	name, ours := d.choose(asked)
	if !ours {
		return d.dialOther(ctx, name, address)
	}
	var addr net.Addr
	n, ok := networks[name]
	switch {
	case !ok:
		if err = unknownNetwork(name); name != asked {
			err = fmt.Errorf("Dialer.ForTCP is %q, which does not go with %s: %w", d.ForTCP, asked, err)
		}
	case n.Network == overAuto:
		c, addr, err = d.dialAuto(ctx, n, asked, address)
		countDial(n.Name, c, err)
	default:
		c, addr, err = d.dialOne(ctx, n, asked, address)
		countDial(n.Name, c, err)
	}
	if err != nil {
		c, err = nil, opError("dial", name, d.LocalAddr, addr, transport.ContextError(err))
	} else if one, ok := c.(*Conn); ok && name != asked {
		c = newAutoConn(one, nil)
	}
	return c, err
}

// choose returns the network to dial when the caller asks for the named one. If ours is
// false, package net dials it. Without ForTCP all networks are ours, known or not.
func (d *Dialer) choose(network string) (_ string, ours bool) {
	if _, known := networks[network]; known || d.ForTCP == "" {
		return network, true
	}
	if digit, ok := strings.CutPrefix(network, "tcp"); ok && (digit == "" || digit == "4" || digit == "6") {
		return d.ForTCP + digit, true
	}
	return network, false
}

// unknownNetwork returns a net.UnknownNetworkError that also lists the networks that there
// are.
func unknownNetwork(name string) error {
	hint := ""
	if strings.HasPrefix(name, "tcp") {
		hint = "; Dialer.ForTCP names the one to dial for tcp"
	}
	known := strings.Join(slices.Sorted(maps.Keys(networks)), ", ")
	return fmt.Errorf("%w: Dial and Listen know %s%s", net.UnknownNetworkError(name), known, hint)
}

// dialOther has package net dial, and adds this package's networks to its error for an
// unknown one.
func (d *Dialer) dialOther(ctx context.Context, network, address string) (net.Conn, error) {
	other := d.netDialer()
	c, err := other.DialContext(ctx, network, address)
	var unknown net.UnknownNetworkError
	var op *net.OpError
	if errors.As(err, &unknown) && errors.As(err, &op) {
		op.Err = unknownNetwork(network)
	}
	return c, err
}

// dialOne connects to the address over one network. If it fails it also returns at which of the
// addresses that the name has.
func (d *Dialer) dialOne(ctx context.Context, n namedNetwork, asked, address string) (net.Conn, net.Addr, error) {
	one, err := d.dialer(n, asked, d.LocalAddr, d.Resolver)
	if err != nil {
		return nil, nil, err
	}
	return one.Dial(ctx, n.Network, address)
}

// dialAuto does what dialOne does, over the best network that both sides have.
func (d *Dialer) dialAuto(ctx context.Context, n namedNetwork, asked, address string) (net.Conn, net.Addr, error) {
	tcp := d.netDialer()
	one, err := d.dialer(n, asked, tcp.LocalAddr, tcp.Resolver)
	if err != nil {
		return nil, nil, err
	}
	if tcp.LocalAddr != nil {
		tcp.LocalAddr = net.TCPAddrFromAddrPort(one.Local)
	}
	steering, err := auto.Steer()
	if err == nil {
		steering, err = steering.Require("Dialer.Require", d.Require)
	}
	if err != nil {
		return nil, nil, err
	}
	several := auto.Dialer{
		Dialer: one, Steering: steering, Networks: named(steering.Better), TCP: tcp, Times: autoTimes,
		Failures: failures, Lasts: func(err error) bool { return codeOf(err).lasts() },
	}
	c, addr, err := several.Dial(ctx, address)
	if err != nil {
		return nil, addr, withReasons(err)
	}
	return newAutoConn(c.Conn, reasonsOf(c.PassedOver)), nil, nil
}

// dialer returns what dials over one network at a time.
func (d *Dialer) dialer(n namedNetwork, asked string, localAddr net.Addr, resolver *net.Resolver) (transport.Dialer, error) {
	local, err := hostport.LocalAddrPort(localAddr)
	one := transport.Dialer{
		Asked: asked, Family: n.family, Namespace: netns.Current(), Local: local, Resolver: resolver,
		Config: (*link.Config)(d.Config), Events: &observer{trace: d.Trace, dialed: true}, Answer: autoTimes.Answer,
	}
	if d.TrustUser != nil {
		one.Trust, one.Trustee = d.TrustUser, weak.Make(d)
	}
	return one, cmp.Or(d.Config.Validate(), err)
}

// netDialer returns package net's dialer with the options in d.TCP, and those of d that apply
// to all networks.
func (d *Dialer) netDialer() net.Dialer {
	var n net.Dialer
	if d.TCP != nil {
		n = *d.TCP
	}
	if d.Resolver != nil {
		n.Resolver = d.Resolver
	}
	if d.LocalAddr != nil {
		n.LocalAddr = d.LocalAddr
	}
	return n
}

// limit applies Timeout and Deadline to ctx.
func (d *Dialer) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline := d.Deadline
	if d.Timeout != 0 {
		if t := time.Now().Add(d.Timeout); deadline.IsZero() || t.Before(deadline) {
			deadline = t
		}
	}
	if deadline.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline)
}
