package transport

// The addresses that a name has are dialed in turn, as package net dials them.

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http/httptrace"
	"net/netip"
	"time"

	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// Dial connects to an address, "host:port", over one network. If it fails it also returns at
// which of the addresses that the name has.
func (d *Dialer) Dial(ctx context.Context, n *Network, address string) (*rconn.Conn, net.Addr, error) {
	remotes, err := d.Resolve(ctx, address)
	if err != nil {
		return nil, nil, err
	}
	f, err := n.Open(d.Trust, d.Config)
	if err != nil {
		return nil, nil, err
	}
	return InTurn(ctx, d, n.Name, remotes, func(ctx context.Context, remote netip.AddrPort) (*rconn.Conn, error) {
		at, err := d.At(n, f, remote, false)
		if err != nil {
			return nil, err
		}
		return at.Dial(ctx, func(ctx context.Context, _ bool) (*link.Stream, error) { return at.Link(ctx, nil) })
	})
}

// Resolve returns the addresses to dial, in the order to try them: those of the local address's family.
func (d *Dialer) Resolve(ctx context.Context, address string) (remotes []netip.AddrPort, err error) {
	all, err := d.Family.Resolve(ctx, cmp.Or(d.Resolver, net.DefaultResolver), "tcp", address, d.Family.Loopback())
	if err != nil {
		return nil, err
	}
	local := d.Local.Addr()
	for _, remote := range all {
		if !local.IsValid() || local.IsUnspecified() || local.Is4() == remote.Addr().Is4() {
			remotes = append(remotes, remote)
		}
	}
	if len(remotes) == 0 {
		return nil, &net.AddrError{Err: "no address of the local address's family", Addr: address}
	}
	return remotes, nil
}

// InTurn dials addresses one after the other until one connects. If all fail, it returns the
// first one and its error.
func InTurn[C any](ctx context.Context, d *Dialer, network string, remotes []netip.AddrPort,
	dial func(context.Context, netip.AddrPort) (C, error)) (none C, first net.Addr, err error) {
	for i, remote := range remotes {
		if ended := ctx.Err(); ended != nil {
			if err == nil {
				first, err = rconn.NewAddr(network, remote), ended
			}
			break
		}
		shared, cancel := share(ctx, len(remotes)-i)
		c, failed := traced(shared, d.Asked, remote, dial)
		cancel()
		if failed == nil {
			return c, nil, nil
		}
		if err == nil {
			first, err = rconn.NewAddr(network, remote), failed
		}
	}
	return none, first, err
}

// share limits ctx to an equal share of the time that it has left, for one of the given
// number of addresses, but to 2 s at least, as package net does.
func share(ctx context.Context, addresses int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok || addresses == 1 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, max(time.Until(deadline)/time.Duration(addresses), 2*time.Second))
}

// traced calls the hooks of net/http/httptrace in ctx around the dial of one address, as package
// net does for TCP: once, whether the dial makes a link, TCP connections for a proof, or nothing.
func traced[C any](ctx context.Context, network string, remote netip.AddrPort,
	dial func(context.Context, netip.AddrPort) (C, error)) (c C, err error) {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil {
		return dial(ctx, remote)
	}
	if trace.ConnectStart != nil {
		trace.ConnectStart(network, remote.String())
	}
	c, err = dial(withoutHooks{ctx}, remote)
	if trace.ConnectDone != nil {
		var failed error
		if err != nil {
			failed = &net.OpError{Op: "dial", Net: network, Addr: rconn.NewAddr(network, remote), Err: ContextError(err)}
		}
		trace.ConnectDone(network, remote.String(), failed)
	}
	return c, err
}

// withoutHooks is a context whose hooks package net does not find. The package of its key is internal,
// so they are known by their type.
type withoutHooks struct{ context.Context }

func (w withoutHooks) Value(key any) any {
	v := w.Context.Value(key)
	if fmt.Sprintf("%T", v) == "*nettrace.Trace" {
		return nil
	}
	return v
}
