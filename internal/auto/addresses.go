package auto

// The addresses that a name has are dialed in the order in which package net would dial them.

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/ringnet/ringnet/internal/transport"
)

// Dial connects to the process that TCP would reach at an address, "host:port", over the best
// network that both sides have. If it fails it also returns at which of the addresses that the name
// has; once one was dialed the error is a *[DialError] or a *[RequiredError].
func (d *Dialer) Dial(ctx context.Context, address string) (Dialed, net.Addr, error) {
	remotes, err := d.Resolve(ctx, address)
	if err != nil {
		return Dialed{}, nil, err
	}
	primaries, fallbacks := families(remotes)
	var r result
	if d.TCP.FallbackDelay < 0 || len(fallbacks) == 0 {
		r = d.dialInTurn(ctx, remotes)
	} else {
		r = d.dialFamilies(ctx, primaries, fallbacks)
	}
	return r.Dialed, r.addr, r.err
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

// result is that of a dial: a connection, or the error and the address where it occurred.
type result struct {
	Dialed
	addr net.Addr
	err  error
}

// dialFamilies dials the addresses of one family. When that has failed, or has taken
// FallbackDelay, it dials those of the other family too, as package net does (RFC 8305). Where
// goroutines cannot be in the caller's network namespace, it dials in turn.
func (d *Dialer) dialFamilies(ctx context.Context, primaries, fallbacks []netip.AddrPort) result {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the slower dial
	first, second := make(chan result, 1), make(chan result, 1)
	if d.Namespace.Go(func() { first <- d.dialInTurn(ctx, primaries) }) != nil {
		return d.dialInTurn(ctx, slices.Concat(primaries, fallbacks))
	}
	failed := make(chan struct{})              // closed when the first has
	const recommended = 300 * time.Millisecond // package net's
	delay := cmp.Or(d.TCP.FallbackDelay, recommended)
	err := d.Namespace.Go(func() {
		select {
		case <-failed:
		case <-time.After(delay):
		case <-ctx.Done():
		}
		second <- d.dialInTurn(ctx, fallbacks)
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
func discard(slower <-chan result) {
	if r := <-slower; r.err == nil {
		transport.Reset(r.Conn)
	}
}

// dialInTurn dials addresses one after the other.
func (d *Dialer) dialInTurn(ctx context.Context, remotes []netip.AddrPort) result {
	c, addr, err := transport.InTurn(ctx, &d.Dialer, "auto", remotes, d.dial)
	return result{c, addr, err}
}
