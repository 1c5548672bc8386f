package ringnet

// A dial of "auto": the addresses that a name has, in the order in which package net would dial
// them. Package auto dials each.

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"
	"weak"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hostport"
	"github.com/ringnet/ringnet/internal/netns"
)

// autoTimes is a variable because tests change it.
var autoTimes = auto.DefaultTimes

// failures are what auto remembers in this process.
var failures = new(auto.Failures)

// dialAuto connects to the process that TCP would reach, over the best network that both
// sides have.
func (d *Dialer) dialAuto(ctx context.Context, n network, address string) (*AutoConn, net.Addr, error) {
	if err := d.Config.Validate(); err != nil {
		return nil, nil, err
	}
	tcp := d.netDialer()
	local, err := hostport.LocalAddrPort(tcp.LocalAddr)
	if err != nil {
		return nil, nil, err
	}
	if tcp.LocalAddr != nil {
		tcp.LocalAddr = net.TCPAddrFromAddrPort(local)
	}
	a, err := d.auto(tcp, local, n.namespace)
	if err != nil {
		return nil, nil, err
	}
	remotes, err := n.family.Resolve(ctx, cmp.Or(tcp.Resolver, net.DefaultResolver), "tcp", address, n.family.Loopback())
	if err != nil {
		return nil, nil, err
	}
	if remotes, err = matching(remotes, local.Addr(), address); err != nil {
		return nil, nil, err
	}
	primaries, fallbacks := families(remotes)
	if tcp.FallbackDelay < 0 || len(fallbacks) == 0 {
		return a.dialInTurn(ctx, remotes).unpack()
	}
	return a.dialFamilies(ctx, primaries, fallbacks).unpack()
}

// autoDial is one dial of the network "auto", of all addresses that the name has.
type autoDial struct{ auto.Dialer }

// auto returns a dial from a local address, in a network namespace.
func (d *Dialer) auto(tcp net.Dialer, local netip.AddrPort, in netns.Namespace) (*autoDial, error) {
	steering, err := auto.Steer()
	if err != nil {
		return nil, err
	}
	if steering, err = steering.Require("Dialer.Require", d.Require); err != nil {
		return nil, err
	}
	a := &autoDial{auto.Dialer{
		Steering:  steering,
		TCP:       tcp,
		Times:     autoTimes,
		Namespace: in,
		Failures:  failures,
		Lasts:     func(err error) bool { return codeOf(contextError(err)).lasts() },
		Wrap:      func(c *net.TCPConn) auto.Conn { return d.Trace.newTCPConn(c, true) },
	}}
	if d.TrustUser != nil {
		a.Trust = weak.Make(d)
	}
	for _, name := range steering.Better {
		n := networks[name]
		n.namespace = in
		a.Networks = append(a.Networks, auto.Network{
			Name: name,
			Open: func() (fabric.Fabric, error) { return n.open(d.TrustUser, d.Config) },
			Up: func(f fabric.Fabric, remote netip.AddrPort) bool {
				cfg, err := d.setup(n, f)
				return err == nil && links.Up(d.linkKey(f, local, remote, cfg, true), a.Times.Answer)
			},
			Dial: func(ctx context.Context, f fabric.Fabric, remote netip.AddrPort, maker *auto.ProvenLinks) (*Conn, error) {
				c, err := d.dialPatiently(ctx, n, f, local, remote, maker)
				var waited *waitError
				if errors.As(err, &waited) {
					err = waited.cause // auto knows how ctx has ended
				}
				return c, err
			},
		})
	}
	return a, nil
}

// dial connects to one address.
func (a *autoDial) dial(ctx context.Context, remote netip.AddrPort) (*AutoConn, error) {
	c, passedOver, err := a.Dial(ctx, remote)
	var required *auto.RequiredError
	switch {
	case errors.As(err, &required):
		return nil, withReasons(err)
	case err != nil:
		return nil, &autoError{contextError(err), reasonsOf(passedOver)}
	}
	return newAutoConn(c, reasonsOf(passedOver)), nil
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

// matching returns those of the addresses of a name that can be dialed from a local one.
func matching(remotes []netip.AddrPort, local netip.Addr, name string) (match []netip.AddrPort, err error) {
	for _, remote := range remotes {
		if !local.IsValid() || local.IsUnspecified() || local.Is4() == remote.Addr().Is4() {
			match = append(match, remote)
		}
	}
	if len(match) == 0 {
		return nil, &net.AddrError{Err: "no address of the local address's family", Addr: name}
	}
	return match, nil
}

// families divides addresses into those of the first one's family and those of the other.
func families(remotes []netip.AddrPort) (primaries, fallbacks []netip.AddrPort) {
	for _, remote := range remotes {
		if remote.Addr().Is4() == remotes[0].Addr().Is4() {
			primaries = append(primaries, remote)
		} else {
			fallbacks = append(fallbacks, remote)
		}
	}
	return primaries, fallbacks
}

// dialed is the result of a dial: a connection, or the error and the address where it
// occurred.
type dialed struct {
	conn *AutoConn
	addr net.Addr
	err  error
}

func (r dialed) unpack() (*AutoConn, net.Addr, error) { return r.conn, r.addr, r.err }

// dialFamilies dials the addresses of one family. When that has failed, or has taken
// FallbackDelay, it dials those of the other family too, as package net does (RFC 8305). Where
// goroutines cannot be in the caller's network namespace, it dials in turn.
func (a *autoDial) dialFamilies(ctx context.Context, primaries, fallbacks []netip.AddrPort) dialed {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the slower dial
	first, second := make(chan dialed, 1), make(chan dialed, 1)
	if a.Namespace.Go(func() { first <- a.dialInTurn(ctx, primaries) }) != nil {
		return a.dialInTurn(ctx, slices.Concat(primaries, fallbacks))
	}
	failed := make(chan struct{})              // closed when the first has
	const recommended = 300 * time.Millisecond // package net's
	delay := cmp.Or(a.TCP.FallbackDelay, recommended)
	err := a.Namespace.Go(func() {
		select {
		case <-failed:
		case <-time.After(delay):
		case <-ctx.Done():
		}
		second <- a.dialInTurn(ctx, fallbacks)
	})
	if err != nil {
		return <-first
	}
	select {
	case r := <-first:
		if r.err == nil {
			go discard(second)
			return r
		}
		close(failed)
		if other := <-second; other.err == nil {
			return other
		}
		return r
	case r := <-second:
		if r.err == nil {
			go discard(first)
			return r
		}
		return <-first
	}
}

// discard closes the connection that the slower dial may still make.
func discard(result <-chan dialed) {
	if r := <-result; r.conn != nil {
		auto.Reset(r.conn)
	}
}

// dialInTurn dials addresses one after the other.
func (a *autoDial) dialInTurn(ctx context.Context, remotes []netip.AddrPort) dialed {
	c, addr, err := inTurn(ctx, "auto", remotes, a.dial)
	return dialed{c, addr, err}
}
