//go:build linux && cgo

package rdmacore

// The active side up to a route: which device, which local address.

// #include "shim.h"
import "C"

import (
	"context"
	"net/netip"
	"syscall"
	"time"
)

// ResolveTimeout bounds each of the two resolutions where ctx does not. TCP gives a
// neighbour that does not answer three seconds; resolving a route asks the subnet
// manager on InfiniBand and sends nothing on RoCE.
const ResolveTimeout = 5 * time.Second

// Resolve returns an ID that has a route to a remote address. If local is not valid, or has a port
// alone, the connection manager chooses the address. Resolve returns early when ctx ends. If there is
// no device for the address, the error wraps errors.ErrUnsupported and ENODEV.
func (m CM) Resolve(ctx context.Context, local, remote netip.AddrPort) (*ID, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dst, err := toSockaddr(remote)
	if err != nil {
		return nil, err
	}
	var src *sockaddr
	if local.Addr().IsValid() || local.Port() != 0 {
		s, err := toSockaddr(localFor(local, remote))
		if err != nil {
			return nil, err
		}
		src = &s
	}
	id, err := m.create()
	if err != nil {
		return nil, err
	}
	if err := id.resolve(ctx, src, &dst, remote.Addr()); err != nil {
		_ = id.Close()
		return nil, err
	}
	id.local = fromSockaddr(&id.cm.src)
	id.remote = remote
	return id, nil
}

// localFor adds the unspecified address of the remote's family to a local port without
// address.
func localFor(local, remote netip.AddrPort) netip.AddrPort {
	if local.Addr().IsValid() {
		return local
	}
	if remote.Addr().Unmap().Is4() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), local.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), local.Port())
}

func (id *ID) resolve(ctx context.Context, src, dst *sockaddr, remote netip.Addr) error {
	ms := C.int(ResolveTimeout.Milliseconds())
	if rc := C.rn_resolve_addr(id.cm, src, dst, ms); rc != 0 {
		return addrError("rdma_resolve_addr", syscall.Errno(rc), remote)
	}
	ev, err := id.Await(ctx, addrResolved, addrFailed)
	if err != nil {
		return err
	}
	if ev.Kind == addrFailed {
		return resolveError("rdma_resolve_addr", ev.Status, remote)
	}
	if err := refuseIWARP(id.cm); err != nil {
		return err
	}
	if rc := C.rn_resolve_route(id.cm, ms); rc != 0 {
		return addrError("rdma_resolve_route", syscall.Errno(rc), remote)
	}
	ev, err = id.Await(ctx, routeResolved, routeFailed)
	if err != nil {
		return err
	}
	if ev.Kind == routeFailed {
		return resolveError("rdma_resolve_route", ev.Status, remote)
	}
	return nil
}
