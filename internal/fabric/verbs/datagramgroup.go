//go:build linux && cgo

package verbs

// Groups: section 3 of rdmaudp/protocol.md. RoCE uses the multicast addresses of IP; the
// connection manager announces a member to the network. A member has a queue pair for
// nothing but the group at its port; what is sent to a group goes out by the port's
// other queue pair.

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
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
	group   netip.AddrPort
	card    netip.Addr          // the card, as passed to Join
	e       *endpoint           // bound to the card; it has joined
	addr    sockaddr            // of the group
	service service             // the group as senders address it
	qp      *C.struct_rn_ibv_qp // attached to the group; nil: none is
}

// join makes the card with an address a member of a group: one that only sends to it, or
// one that receives, too.
func (d *datagrams) join(ctx context.Context, group netip.AddrPort, card netip.Addr, sendsOnly bool) (*membership, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m := &membership{group: group, card: card}
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
	if err := m.join(ctx, e, sendsOnly); err != nil {
		_ = e.Close()
		return nil, err
	}
	return m, nil
}

// cardFor is the address of the card at which to join a group, or from which to send to
// it: the given one if it is valid, or the endpoint's own, or else that of the route to
// the group.
func (d *datagrams) cardFor(group netip.AddrPort, card netip.Addr) (netip.Addr, error) {
	switch {
	case card.IsValid():
		return card, nil
	case !d.local.Addr().IsUnspecified():
		return d.local.Addr(), nil
	}
	return d.rdma.Source(group)
}

func (m *membership) join(ctx context.Context, e *endpoint, sendsOnly bool) error {
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
	m.service = ev.service
	return nil
}

// joinError is the failure to join a group. The connection manager does not join groups
// of IPv6 over RoCE v2.
func joinError(rc C.int) error {
	const notSupported = 524 // ENOTSUPP, which is the kernel's own
	err := syscallError("rdma_join_multicast", rc)
	if rc == notSupported {
		return fmt.Errorf("%w: the connection manager of RDMA joins no groups of IPv6", errors.ErrUnsupported)
	}
	return err
}

// attach attaches the queue pair of an endpoint to the group, so that it receives what is
// sent there.
func (m *membership) attach(e *endpoint) error {
	if rc := C.rn_attach(e.qp, &m.service.attr); rc != 0 {
		return e.device.deviceError("ibv_attach_mcast", rc)
	}
	m.qp = e.qp
	return nil
}

// detach ends that.
func (m *membership) detach() {
	if m.qp != nil {
		C.rn_detach(m.qp, &m.service.attr)
		m.qp = nil
	}
}

// end leaves the group and releases everything.
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
	d.making.Lock()
	defer d.making.Unlock()
	for _, q := range *d.queues.Load() {
		if q.group == group && q.isAt(m.e) {
			m.end()
			return syscall.EADDRINUSE
		}
	}
	_, err = d.openQueue(m.e.local.Addr(), m)
	return err
}

// replaceMember makes another queue pair for the membership of one that has failed. If
// there is an error, the membership has ended.
func (d *datagrams) replaceMember(q *datagramQueue) {
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

// Leave implements [fabric.DatagramEndpoint].
func (d *datagrams) Leave(group netip.AddrPort, card netip.Addr) error {
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
func (d *datagrams) resolveGroup(ctx context.Context, to netip.AddrPort) (fabric.AddressHandle, error) {
	m, err := d.join(ctx, to, netip.Addr{}, true)
	if err != nil {
		return nil, err
	}
	m.service.attr.hop_limit = groupHops
	h := &addressHandle{
		to: to, receiver: queuePair{groupNumber, groupKey(to.Port())},
		maxMessage: d.limits.MaxMessage, cancel: m.end,
	}
	if err := d.prepare(h, m.e, &m.service); err != nil {
		m.end()
		return nil, err
	}
	return h, nil
}
