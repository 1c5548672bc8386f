package ringnet

// Dialing under load: how many requests are under way at once, and what becomes
// of those that a listener has no room for.

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// maxRequests is how many connection requests of this process may be under way.
// More would get there no sooner, and of many at once some get lost, which costs
// seconds each until the connection manager repeats them.
const maxRequests = 64

// requests has one element for each.
var requests = make(chan struct{}, maxRequests)

// A listener that has no room is asked again after pauses that grow from
// shortestPause to longestPause, each half as long again or shorter by as much
// at random, so that those who were refused together do not come back together.
// Without a deadline that goes on for patience.
const (
	shortestPause = 5 * time.Millisecond
	longestPause  = time.Second
	patience      = 30 * time.Second
)

// dialPatiently connects to an address, and asks again while the listener has no room.
func (d *Dialer) dialPatiently(ctx context.Context, n network, f fabric.Fabric, local, remote netip.AddrPort,
	r *race) (*Conn, error) {
	began := time.Now()
	_, limited := ctx.Deadline()
	var busy *rconn.RefusedError
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		c, err := d.dialLink(ctx, n, f, local, remote, r)
		switch {
		case err != nil && ctx.Err() != nil && busy != nil:
			return nil, &busyError{contextError(ctx.Err()), busy}
		case err == nil, !errors.As(err, &busy), !busy.Busy, !limited && time.Since(began) > patience:
			return c, err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return nil, &busyError{contextError(ctx.Err()), busy}
		}
	}
}

// request asks once for a connection, when there is a place for one request more.
func (d *Dialer) request(ctx context.Context, f fabric.Fabric, local, remote netip.AddrPort, cfg link.Config, r *race) (*link.Stream, error) {
	select {
	case requests <- struct{}{}:
		defer func() { <-requests }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ep, err := f.Dial(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	if r != nil {
		ep = entrant{ep, r}
	}
	return link.Dial(ctx, ep, cfg)
}

// busyError is what a dial returns whose time ended while the listener had no
// room.
type busyError struct {
	ended error // of the context, in package net's words
	busy  *rconn.RefusedError
}

func (e *busyError) Error() string   { return e.ended.Error() + ": " + e.busy.Error() }
func (e *busyError) Unwrap() []error { return []error{e.ended, e.busy} }
func (e *busyError) Timeout() bool   { return errors.Is(e.ended, context.DeadlineExceeded) }
func (e *busyError) Temporary() bool { return true }
