package transport

// How many requests for links are under way at once.

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/ringnet/ringnet/internal/limiter"
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

// Requests bounds the requests under way, by host. A nil *Requests does not.
type Requests struct{ limiter *limiter.Limiter[remoteHost] }

// remoteHost is one of a network namespace.
type remoteHost struct {
	netns.Namespace
	netip.Addr
}

// NewRequests returns a bound with no request under way.
func NewRequests() *Requests {
	return &Requests{limiter.New[remoteHost](maxRequests, requestsPerHost)}
}

// UnderWay returns how many requests are.
func (r *Requests) UnderWay() int {
	all, _ := r.limiter.UnderWay(remoteHost{})
	return all
}

// enter waits for the turn of a request to a host. The caller calls leave when it is over.
func (r *Requests) enter(ctx context.Context, to remoteHost) error {
	if r == nil || r.limiter.Enter(ctx, to) {
		return nil
	}
	if _, toHost := r.limiter.UnderWay(to); toHost >= requestsPerHost {
		return waited(ctx, fmt.Errorf("waited for %d other requests to %v", toHost, to.Addr))
	}
	return waited(ctx, fmt.Errorf("waited for %d other requests of this process", maxRequests))
}

func (r *Requests) leave(to remoteHost) {
	if r != nil {
		r.limiter.Leave(to)
	}
}
