//go:build linux && cgo

package verbs

// The passive side up to a request.

// #include "shim.h"
import "C"

import (
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

type listener struct {
	rdma rdma
	id   cmID
	addr netip.AddrPort

	// queue holds the requests that Accept has not returned. Its capacity is
	// the backlog; only receive adds to it, so receive never waits.
	queue chan *endpoint

	mu     sync.Mutex // held to add to queue and to close closed
	closed chan struct{}
	failed chan struct{} // closed when the device is gone
}

// Listen implements [fabric.Fabric]. The unspecified IPv4 and IPv6 addresses
// accept that family alone, a zero Addr accepts both.
func (f rdma) Listen(local netip.AddrPort, backlog int) (fabric.Listener, error) {
	if err := refuseAtAll(sysInfiniband, local); err != nil {
		return nil, err
	}
	if local.Addr().IsValid() {
		return f.listen(local, true, backlog)
	}
	l, err := f.listen(netip.AddrPortFrom(netip.IPv6Unspecified(), local.Port()), false, backlog)
	if err != nil && isNoIPv6(err) {
		return f.listen(netip.AddrPortFrom(netip.IPv4Unspecified(), local.Port()), false, backlog)
	}
	return l, err
}

func (f rdma) listen(local netip.AddrPort, v6only bool, backlog int) (fabric.Listener, error) {
	id, err := f.bind(local, v6only)
	if isErrno(err, syscall.EADDRNOTAVAIL) && local.Port() != 0 {
		if free, err2 := f.bind(netip.AddrPortFrom(local.Addr(), 0), v6only); err2 == nil {
			f.destroyID(free)
			err = addrError("rdma_bind_addr", syscall.EADDRINUSE, local.Addr()) // the kernel's errno only if both bound the same address
		}
	}
	if err != nil {
		return nil, err
	}
	l := &listener{
		rdma:   f,
		id:     id,
		addr:   fromSockaddr(&id.src),
		queue:  make(chan *endpoint, max(backlog, 1)),
		closed: make(chan struct{}),
		failed: make(chan struct{}),
	}
	f.register(id, l)
	// 0 means the longest backlog that the kernel allows. The kernel drops requests
	// beyond it, and the dialer repeats them only seconds later, while receive rejects
	// those beyond queue at once.
	if rc := C.rn_listen(id, 0); rc != 0 {
		f.destroyID(id)
		return nil, addrError("rdma_listen", syscall.Errno(rc), local.Addr())
	}
	return l, nil
}

func (l *listener) receive(ev cmEvent) {
	switch ev.kind {
	case C.RN_RDMA_CM_EVENT_CONNECT_REQUEST:
		if err := refuseIWARP(ev.request); err != nil {
			l.rdma.refuse(ev.request, wire.Reject{Reason: err.Error()}.Append(nil))
		} else if !l.enqueue(ev) {
			l.rdma.refuse(ev.request, wire.Full.Append(nil))
		}
	case C.RN_RDMA_CM_EVENT_DEVICE_REMOVAL:
		select {
		case <-l.failed:
		default:
			close(l.failed)
		}
	}
}

func (l *listener) enqueue(ev cmEvent) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		return false
	default:
	}
	e := newEndpoint(l.rdma, ev.request)
	e.contacted = true
	e.private = e.out.parse(ev.private, fabric.MaxConnectData)
	e.local, e.remote = inZone(fromSockaddr(&ev.request.src), fromSockaddr(&ev.request.dst))
	l.rdma.register(ev.request, e)
	select {
	case l.queue <- e:
		return true
	default:
		l.rdma.forget(ev.request)
		return false
	}
}

func (l *listener) Accept() (fabric.Endpoint, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case e := <-l.queue:
		return e, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-l.failed:
		return nil, fabric.ErrDeviceRemoved
	}
}

func (l *listener) Addr() netip.AddrPort { return l.addr }

func (l *listener) Close() error {
	l.mu.Lock()
	select {
	case <-l.closed:
		l.mu.Unlock()
		return net.ErrClosed
	default:
	}
	close(l.closed)
	l.mu.Unlock()

	err := l.rdma.destroyID(l.id)
	for {
		select {
		case e := <-l.queue:
			_ = e.Reject(nil)
			e.Close()
		default:
			return err
		}
	}
}

// isNoIPv6 reports whether a bind failed because this system has no IPv6.
func isNoIPv6(err error) bool {
	return isErrno(err, syscall.EAFNOSUPPORT, syscall.EADDRNOTAVAIL, syscall.EINVAL)
}
