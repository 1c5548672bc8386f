//go:build linux && cgo

package verbs

// Groups: section 12.3 of docs/protocol.md. RoCE uses the multicast addresses of IP; the
// connection manager tells the network that there is a member. A member has a queue pair
// for nothing but the group at its port; what is sent to a group goes out by the queue
// pair that sends all else.

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
)

// groupNumber is what senders name in place of a queue pair's number, for all that are
// attached to a group (InfiniBand specification, 10.5.1).
const groupNumber = 0xffffff

// groupKey is the Q_Key of all that receive from a group at a port, so that a device drops
// for them what is for other ports of the same group.
func groupKey(port uint16) uint32 { return 0x5d<<24 | uint32(port) }

// groupHops is the hop limit of datagrams to a group: they pass no router, as those of
// package net's UDP do not. The connection manager would have 64.
const groupHops = 1

// membership is that of a card in a group.
type membership struct {
	e     *endpoint // which has joined
	addr  sockaddr  // of the group
	group service   // what senders have to name
	asked netip.Addr
	qp    *C.struct_rn_ibv_qp // attached to the group; nil: none is
}

// join has the card with an address be a member of a group: of those that only send to it,
// or of all.
func (d *datagrams) join(ctx context.Context, group netip.AddrPort, card netip.Addr, sendsOnly bool) (*membership, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m := &membership{asked: card}
	var err error
	if m.addr, err = toSockaddr(netip.AddrPortFrom(group.Addr(), 0)); err != nil {
		return nil, err
	}
	if card, err = d.cardFor(group, card); err != nil {
		return nil, err
	}
	e, err := d.rdma.bindTo(card)
	if err != nil {
		return nil, err
	}
	if err := m.enter(ctx, e, sendsOnly); err != nil {
		_ = e.Close()
		return nil, err
	}
	return m, nil
}

// cardFor is the address of the card at which to join a group, or from which to send to it,
// where nobody has said.
func (d *datagrams) cardFor(group netip.AddrPort, card netip.Addr) (netip.Addr, error) {
	switch {
	case card.IsValid():
		return card, nil
	case !d.local.Addr().IsUnspecified():
		return d.local.Addr(), nil
	}
	return d.rdma.Source(group)
}

func (m *membership) enter(ctx context.Context, e *endpoint, sendsOnly bool) error {
	flag := C.int(0)
	if sendsOnly {
		flag = 1
	}
	if rc := C.rn_join(e.id, &m.addr, flag); rc != 0 {
		return joinError(rc)
	}
	m.e = e
	ev, err := e.await(ctx, C.RN_RDMA_CM_EVENT_MULTICAST_JOIN, C.RN_RDMA_CM_EVENT_MULTICAST_ERROR)
	if err == nil && ev.kind == C.RN_RDMA_CM_EVENT_MULTICAST_ERROR {
		err = joinError(C.int(-ev.status))
	}
	if err != nil {
		C.rn_leave(e.id, &m.addr)
		return err
	}
	m.group = ev.service
	return nil
}

// joinError is the failure to join a group. The connection manager has none of IPv6 over
// RoCE v2.
func joinError(rc C.int) error {
	const notSupported = 524 // ENOTSUPP, which is the kernel's own
	err := syscallError("rdma_join_multicast", rc)
	if rc == notSupported {
		return fmt.Errorf("%w: the connection manager of RDMA joins no groups of IPv6", errors.ErrUnsupported)
	}
	return err
}

// attach has a queue pair receive what is sent to the group.
func (m *membership) attach(qp *C.struct_rn_ibv_qp) error {
	if rc := C.rn_attach(qp, &m.group.attr); rc != 0 {
		return deviceError("ibv_attach_mcast", rc)
	}
	m.qp = qp
	return nil
}

// detach ends that.
func (m *membership) detach() {
	if m.qp != nil {
		C.rn_detach(m.qp, &m.group.attr)
		m.qp = nil
	}
}

// end gives everything back.
func (m *membership) end() {
	m.detach()
	C.rn_leave(m.e.id, &m.addr)
	_ = m.e.Close()
}

// Join implements [fabric.DatagramEndpoint].
func (d *datagrams) Join(ctx context.Context, group netip.AddrPort, card netip.Addr) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	m, err := d.join(ctx, group, card, false)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.openGroup(group, m); err != nil {
		m.end()
		return err
	}
	return nil
}

// openGroup makes the queue pair of a member. Called with mu held.
func (d *datagrams) openGroup(group netip.AddrPort, m *membership) error {
	at := m.e.id
	if slices.ContainsFunc(*d.queues.Load(), func(q *datagramQueue) bool {
		return q.group == group && q.e.id.verbs == at.verbs && q.e.id.port_num == at.port_num
	}) {
		return syscall.EADDRINUSE
	}
	return d.attachQueue(group, m)
}

// attachQueue makes a queue pair for a membership that has none. Called with mu held.
func (d *datagrams) attachQueue(group netip.AddrPort, m *membership) error {
	q, err := d.openQueue(m.e.local.Addr(), group)
	if err != nil {
		return err
	}
	if err := m.attach(q.e.qp); err != nil {
		d.remove(q)
		return err
	}
	q.member = m
	return nil
}

// replaceMember makes another queue pair for the membership of one that has failed. If
// there can be none, the membership has ended. Called with mu held.
func (d *datagrams) replaceMember(q *datagramQueue) {
	if !slices.Contains(*d.queues.Load(), q) {
		return // it has ended
	}
	m := q.member
	m.detach()
	q.member = nil
	d.remove(q)
	if d.attachQueue(q.group, m) != nil {
		m.end()
	}
}

// Leave implements [fabric.DatagramEndpoint].
func (d *datagrams) Leave(group netip.AddrPort, card netip.Addr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range *d.queues.Load() {
		if q.group == group && q.member.asked == card {
			d.remove(q)
			return nil
		}
	}
	return syscall.EADDRNOTAVAIL
}

// resolveGroup is Resolve for a group.
func (d *datagrams) resolveGroup(ctx context.Context, to netip.AddrPort) (fabric.AddressHandle, error) {
	m, err := d.join(ctx, to, netip.Addr{}, true)
	if err != nil {
		return nil, err
	}
	m.group.attr.hop_limit = groupHops
	d.mu.Lock()
	defer d.mu.Unlock()
	h := &addressHandle{
		to: to, id: randomID(), receiver: queuePair{groupNumber, groupKey(to.Port())},
		maxMessage: d.limits.MaxMessage, cancel: m.end,
	}
	if err := d.enter(h, m.e, &m.group); err != nil {
		m.end()
		return nil, err
	}
	return h, nil
}
