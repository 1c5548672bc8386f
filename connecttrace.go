package ringnet

// The hooks of net/http/httptrace for connecting, which package net calls for TCP.

import (
	"context"
	"fmt"
	"net/http/httptrace"
	"net/netip"

	"github.com/ringnet/ringnet/rconn"
)

// askedKey is the key of the network that the caller of a dial has asked for, in its context.
type askedKey struct{}

// traceConnect calls the hooks in ctx around the dial of one address: once, as for one of TCP, whether
// the dial makes a link, TCP connections for a proof, or nothing.
func traceConnect[C any](ctx context.Context, remote netip.AddrPort,
	dial func(context.Context, netip.AddrPort) (C, error)) (c C, err error) {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil {
		return dial(ctx, remote)
	}
	network, _ := ctx.Value(askedKey{}).(string)
	if trace.ConnectStart != nil {
		trace.ConnectStart(network, remote.String())
	}
	c, err = dial(withoutHooks{ctx}, remote)
	if trace.ConnectDone != nil {
		trace.ConnectDone(network, remote.String(), opError("dial", network, nil, rconn.NewAddr(network, remote), contextError(err)))
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
