//go:build linux && cgo

package ud

// Groups: section 3 of protocol.md. RoCE uses the multicast addresses of IP; the
// connection manager announces a member to the network. A member has a queue pair for
// nothing but the group at its port; what is sent to a group goes out by the port's
// other queue pair.

import (
	"context"
	"net/netip"
	"syscall"

	"github.com/ringnet/ringnet/internal/rdmacore"
)

// groupNumber is the queue pair number that senders to a group address: all that are
// attached to it (InfiniBand specification, 10.5.1).
const groupNumber = 0xffffff

// groupKey is the Q_Key of all queue pairs that receive from a group at a port, so that
// their devices drop datagrams to other ports of the same group.
func groupKey(port uint16) uint32 { return 0x5d<<24 | uint32(port) }

// groupHops is the hop limit of datagrams to a group: no router forwards them, as with
// package net's UDP. The connection manager would set 64.
const groupHops = 1

// membership is the membership of a card in a group.
type membership struct {
	*rdmacore.Membership
	group    netip.AddrPort
	card     netip.Addr          // the card, as passed to Join
	attached *rdmacore.QueuePair // to the group; nil: none is
}

// join makes the card with an address a member of a group: one that only sends to it, or
// one that receives, too.
func (d *endpoint) join(ctx context.Context, group netip.AddrPort, card netip.Addr, sendsOnly bool) (*membership, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	at, err := d.cardFor(group, card)
	if err != nil {
		return nil, err
	}
	id, err := d.cm.Bind(at)
	if err != nil {
		return nil, err
	}
	m, err := rdmacore.Join(ctx, id, group.Addr(), sendsOnly)
	if err != nil {
		return nil, err
	}
	return &membership{Membership: m, group: group, card: card}, nil
}

// cardFor is the address of the card at which to join a group, or from which to send to
// it: the given one if it is valid, or the endpoint's own, or else that of the route to
// the group.
func (d *endpoint) cardFor(group netip.AddrPort, card netip.Addr) (netip.Addr, error) {
	switch {
	case card.IsValid():
		return card, nil
	case !d.local.Addr().IsUnspecified():
		return d.local.Addr(), nil
	}
	return SourceOf(group)
}

// attach attaches a queue pair to the group, so that it receives what is sent there.
func (m *membership) attach(q *rdmacore.QueuePair) error {
	if err := q.Attach(&m.Service); err != nil {
		return err
	}
	m.attached = q
	return nil
}

// detach ends that.
func (m *membership) detach() {
	if m.attached != nil {
		m.attached.Detach(&m.Service)
		m.attached = nil
	}
}

// end leaves the group and releases everything.
func (m *membership) end() {
	m.detach()
	m.Leave()
}

// Join implements [Endpoint].
func (d *endpoint) Join(ctx context.Context, group netip.AddrPort, card netip.Addr) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	m, err := d.join(ctx, group, card, false)
	if err != nil {
		return err
	}
	d.making.Lock()
	defer d.making.Unlock()
	for _, q := range *d.queues.Load() {
		if q.group == group && q.isAt(m.ID) {
			m.end()
			return syscall.EADDRINUSE
		}
	}
	_, err = d.openQueue(m.ID.LocalAddr().Addr(), m)
	return err
}

// replaceMember makes another queue pair for the membership of one that has failed. If
// there is an error, the membership has ended.
func (d *endpoint) replaceMember(q *queuePair) {
	d.making.Lock()
	defer d.making.Unlock()
	if !d.remove(q, false) {
		return // the membership has ended
	}
	m := q.member
	m.detach()
	q.member = nil
	q.close()
	_, _ = d.openQueue(q.local, m)
}

// Leave implements [Endpoint].
func (d *endpoint) Leave(group netip.AddrPort, card netip.Addr) error {
	d.making.Lock()
	defer d.making.Unlock()
	for _, q := range *d.queues.Load() {
		if q.group == group && q.member.card == card && d.remove(q, false) {
			q.close()
			return nil
		}
	}
	return syscall.EADDRNOTAVAIL
}

// resolveGroup is Resolve for a group.
func (d *endpoint) resolveGroup(ctx context.Context, to netip.AddrPort) (AddressHandle, error) {
	m, err := d.join(ctx, to, netip.Addr{}, true)
	if err != nil {
		return nil, err
	}
	m.Service.SetHopLimit(groupHops)
	h := &addressHandle{
		to: to, receiver: qpAddress{groupNumber, groupKey(to.Port())},
		maxMessage: d.limits.MaxMessage, cancel: m.end,
	}
	if err := d.prepare(h, m.ID, &m.Service); err != nil {
		m.end()
		return nil, err
	}
	return h, nil
}
