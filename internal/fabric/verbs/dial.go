//go:build linux && cgo

package verbs

// The active side up to a route: which device, which local address.

// #include "shim.h"
import "C"

import (
	"context"
	"net/netip"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// resolveTimeout bounds each of the two resolutions where ctx does not. TCP gives a
// neighbour that does not answer three seconds; resolving a route asks the subnet
// manager on InfiniBand and sends nothing on RoCE.
const resolveTimeout = 5 * time.Second

// Dial implements [fabric.Fabric].
func (f rdma) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
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
	id, err := f.createID()
	if err != nil {
		return nil, err
	}
	e := newEndpoint(f, id)
	f.register(id, e)
	if err := e.resolve(ctx, src, &dst, remote.Addr()); err != nil {
		e.Close()
		return nil, err
	}
	e.local = fromSockaddr(&id.src)
	e.remote = remote
	return e, nil
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

func (e *endpoint) resolve(ctx context.Context, src, dst *sockaddr, remote netip.Addr) error {
	ms := C.int(resolveTimeout.Milliseconds())
	if rc := C.rn_resolve_addr(e.id, src, dst, ms); rc != 0 {
		return addrError("rdma_resolve_addr", syscall.Errno(rc), remote)
	}
	ev, err := e.await(ctx, C.RN_RDMA_CM_EVENT_ADDR_RESOLVED, C.RN_RDMA_CM_EVENT_ADDR_ERROR)
	if err != nil {
		return err
	}
	if ev.kind == C.RN_RDMA_CM_EVENT_ADDR_ERROR {
		return resolveError("rdma_resolve_addr", ev.status, remote)
	}
	if err := refuseIWARP(e.id); err != nil {
		return err
	}
	if rc := C.rn_resolve_route(e.id, ms); rc != 0 {
		return addrError("rdma_resolve_route", syscall.Errno(rc), remote)
	}
	ev, err = e.await(ctx, C.RN_RDMA_CM_EVENT_ROUTE_RESOLVED, C.RN_RDMA_CM_EVENT_ROUTE_ERROR)
	if err != nil {
		return err
	}
	if ev.kind == C.RN_RDMA_CM_EVENT_ROUTE_ERROR {
		return resolveError("rdma_resolve_route", ev.status, remote)
	}
	return nil
}
