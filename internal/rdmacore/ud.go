//go:build linux && cgo

package rdmacore

// What queue pairs of type UD alone need: address handles, and multicast groups.

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"
)

// Service is the address of a receiver that has answered an SIDR REQ, or of a multicast group.
type Service struct {
	attr   C.struct_rn_ibv_ah_attr
	Number uint32 // of the queue pair
}

// SetHopLimit sets the hop limit of what is sent there.
func (s *Service) SetHopLimit(hops uint8) { s.attr.hop_limit = C.uint8_t(hops) }

// AddressHandle is an address handle. The zero AddressHandle is none.
type AddressHandle struct{ ah *C.struct_rn_ibv_ah }

// Addr is the AddressHandle as SendWR.RemoteAddr has it.
func (h AddressHandle) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(h.ah))) }

// CreateAddressHandle makes an address handle for what the queue pair sends, for which the kernel looks
// up the Ethernet address. Its owner destroys it before Close, when no work request uses it any more.
func (q *QueuePair) CreateAddressHandle(to *Service) (AddressHandle, error) {
	var ah *C.struct_rn_ibv_ah
	if rc := C.rn_create_ah(q.pd, &to.attr, &ah); rc != 0 {
		return AddressHandle{}, q.device.error("ibv_create_ah", rc)
	}
	return AddressHandle{ah}, nil
}

// Destroy destroys the address handle.
func (h AddressHandle) Destroy() { C.rn_destroy_ah(h.ah) }

// ToReadyForDatagrams makes a queue pair of type UD ready to send and receive, at the port that the ID
// is bound to.
func (q *QueuePair) ToReadyForDatagrams(qkey uint32) error {
	if rc := C.rn_qp_datagrams(q.ID.cm, q.qp, C.uint32_t(qkey)); rc != 0 {
		return q.device.error("ibv_modify_qp to RTS", rc)
	}
	return nil
}

// Attach has a queue pair of type UD receive what is sent to a group of which its port is a member.
func (q *QueuePair) Attach(group *Service) error {
	if rc := C.rn_attach(q.qp, &group.attr); rc != 0 {
		return q.device.error("ibv_attach_mcast", rc)
	}
	return nil
}

// Detach ends that.
func (q *QueuePair) Detach(group *Service) {
	if q.qp != nil {
		C.rn_detach(q.qp, &group.attr)
	}
}

// Membership is the membership of a port in a multicast group.
type Membership struct {
	ID      *ID     // bound to the port
	Service Service // the group as senders address it

	group sockaddr
}

// Join makes the port that an ID is bound to a member of a group: one that only sends to it, or
// one that receives, too. The connection manager announces it to the network. The membership owns the
// ID, which is closed if there is an error: one that wraps errors.ErrUnsupported for a group of IPv6
// over RoCE v2.
func Join(ctx context.Context, id *ID, group netip.Addr, sendsOnly bool) (*Membership, error) {
	m := &Membership{ID: id}
	if err := m.join(ctx, group, sendsOnly); err != nil {
		_ = id.Close()
		return nil, err
	}
	return m, nil
}

func (m *Membership) join(ctx context.Context, group netip.Addr, sendsOnly bool) (err error) {
	if m.ID.cm == nil {
		return net.ErrClosed
	}
	if m.group, err = toSockaddr(netip.AddrPortFrom(group, 0)); err != nil {
		return err
	}
	flag := C.int(0)
	if sendsOnly {
		flag = 1
	}
	if rc := C.rn_join(m.ID.cm, &m.group, flag); rc != 0 {
		return joinError(rc)
	}
	ev, err := m.ID.Await(ctx, multicastJoined, multicastFailed)
	if err == nil && ev.Kind == multicastFailed {
		err = joinError(C.int(-ev.Status))
	}
	if err != nil {
		C.rn_leave(m.ID.cm, &m.group)
		return err
	}
	m.Service = ev.Service
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

// Leave ends the membership, and closes its ID.
func (m *Membership) Leave() {
	C.rn_leave(m.ID.cm, &m.group)
	_ = m.ID.Close()
}
