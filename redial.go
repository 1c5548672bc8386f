package ringnet

// Dialing under load: how many requests are under way at once, and when a dial repeats a
// request for which the listener has no room.

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/limiter"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/netns"
)

// maxRequests is how many connection requests of this process may be under way over rdma.
// More at once would not arrive sooner, and some of them would be lost, which costs seconds
// each until the connection manager repeats them. requestsPerHost is how many of them may go to
// one host, so that a host that does not answer does not take all.
const (
	maxRequests     = 64
	requestsPerHost = 16
)

// patience is how long a dial without a deadline asks a listener that has no room again.
const patience = 30 * time.Second

// dialPatiently connects to an address. It asks again while the listener has no room, or while
// this process has no memory but is about to get some.
func (d *Dialer) dialPatiently(ctx context.Context, n network, f fabric.Fabric, local, remote netip.AddrPort,
	maker linkMaker) (*Conn, error) {
	began := time.Now()
	_, limited := ctx.Deadline()
	var busy error
	var pauses fabric.Pauses
	for {
		c, err := d.dialLink(ctx, n, f, local, remote, maker)
		switch {
		case err != nil && ctx.Err() != nil && busy != nil:
			return nil, &waitError{contextError(ctx.Err()), busy}
		case err == nil, !isBusy(err), !limited && time.Since(began) > patience:
			return c, err
		}
		busy = err
		if !pauses.Wait(ctx) {
			return nil, &waitError{contextError(ctx.Err()), busy}
		}
	}
}

// isBusy reports whether the same dial may succeed a little later.
func isBusy(err error) bool {
	var refused *fabric.RefusedError
	var shortage *budget.ShortageError
	return errors.As(err, &refused) && refused.Busy || errors.As(err, &shortage) && shortage.Releasing
}

// request returns what begins a request for a link to an address, when the limiter of the network
// allows one more.
func (n network) request(f fabric.Fabric, local, remote netip.AddrPort) auto.Request {
	return func(ctx context.Context) (fabric.Endpoint, func(), error) {
		leave := func() {}
		if host := (remoteHost{n.namespace, remote.Addr()}); n.requests != nil {
			if !n.requests.Enter(ctx, host) {
				return nil, nil, &waitError{contextError(ctx.Err()), n.others(host)}
			}
			leave = func() { n.requests.Leave(host) }
		}
		ep, err := f.Dial(ctx, local, remote)
		if err != nil {
			leave()
			return nil, nil, err
		}
		return ep, leave, nil
	}
}

// others says for which other requests one to a host has waited.
func (n network) others(to remoteHost) error {
	if _, toHost := n.requests.UnderWay(to); toHost >= requestsPerHost {
		return fmt.Errorf("waited for %d other requests to %v", toHost, to.Addr)
	}
	return fmt.Errorf("waited for %d other requests of this process", maxRequests)
}

// linkMaker makes links, and the first stream of each.
type linkMaker interface {
	// Dial makes one. another says that the dial goes on over others if this one fails.
	Dial(ctx context.Context, request auto.Request, cfg link.Setup, another bool) (*link.Stream, error)

	// Answer is after what time without an answer a dial takes another link: see [link.More].
	Answer() time.Duration
}

// unproven makes the links of "rdma" and "shm", which lead where their addresses say.
type unproven struct{ answer time.Duration }

func (u unproven) Answer() time.Duration { return u.answer }

func (unproven) Dial(ctx context.Context, request auto.Request, cfg link.Setup, _ bool) (*link.Stream, error) {
	ep, over, err := request(ctx)
	if err != nil {
		return nil, err
	}
	defer over()
	return link.Dial(ctx, ep, cfg)
}

// requestLimiter bounds the requests under way, by host.
type requestLimiter = limiter.Limiter[remoteHost]

// remoteHost is one of a network namespace.
type remoteHost struct {
	netns.Namespace
	netip.Addr
}

func newRequestLimiter() *requestLimiter {
	return limiter.New[remoteHost](maxRequests, requestsPerHost)
}

// waitError is the error of a dial whose time ended while it waited for its turn, or for room
// at the listener.
type waitError struct {
	ended error // how the context ended, in package net's words
	cause error // why the dial had to wait
}

func (e *waitError) Error() string   { return e.ended.Error() + ": " + e.cause.Error() }
func (e *waitError) Unwrap() []error { return []error{e.ended, e.cause} }
func (e *waitError) Timeout() bool   { return errors.Is(e.ended, context.DeadlineExceeded) }
func (e *waitError) Temporary() bool { return e.Timeout() } // as package net has it
