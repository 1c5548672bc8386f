// Groups that a queue pair for datagrams is a member of.

package datagram

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
)

// membership is what a receive queue is for: a group at a card, or, if it is zero, what
// is sent to the endpoint itself.
type membership struct {
	group netip.AddrPort
	card  netip.Addr
}

// Join implements [fabric.DatagramEndpoint].
func (d *endpoint) Join(ctx context.Context, group netip.AddrPort, card netip.Addr) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m := d.membership(group, card)
	d.n.mu.Lock()
	defer d.n.mu.Unlock()
	switch {
	case d.closed:
		return net.ErrClosed
	case d.n.Removed():
		return fmt.Errorf("sim: join: %w", fabric.ErrDeviceRemoved)
	case !group.Addr().IsMulticast() || group.Port() == 0:
		return fmt.Errorf("sim: join %v: %w", group, syscall.EINVAL)
	case d.member(m) >= 0:
		return fmt.Errorf("sim: join %v at %v: %w", group, m.card, syscall.EADDRINUSE)
	}
	d.addQueue(m)
	return nil
}

// Leave implements [fabric.DatagramEndpoint].
func (d *endpoint) Leave(group netip.AddrPort, card netip.Addr) error {
	m := d.membership(group, card)
	d.n.mu.Lock()
	defer d.n.mu.Unlock()
	i := d.member(m)
	if i < 0 {
		return fmt.Errorf("sim: leave %v at %v: %w", group, m.card, syscall.EADDRNOTAVAIL)
	}
	d.queues[i].end()
	d.queues = slices.Delete(d.queues, i, i+1)
	return nil
}

// member is the index of a membership's receive queue, or negative.
func (d *endpoint) member(m membership) int {
	return slices.IndexFunc(d.queues, func(q *receiveQueue) bool { return q.membership == m })
}

// membership is that of a group at a card. Without a card it is the one that datagrams to
// the group are sent from.
func (d *endpoint) membership(group netip.AddrPort, card netip.Addr) membership {
	if !card.IsValid() {
		card = d.source(group)
	}
	return membership{fabric.Plain(group), card.Unmap()}
}
