//go:build linux && cgo

package rdmacore

// The passive side up to a request.

// #include "shim.h"
import "C"

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
)

// ListenOptions are the parameters of [CM.Listen].
type ListenOptions struct {
	// Backlog is how many requests wait for Accept, one at least.
	Backlog int

	// Full is the private data with which one more is rejected.
	Full []byte

	// Refusal is the private data with which a request is rejected that this side does not
	// take, because of an error.
	Refusal func(error) []byte
}

// Listener receives connection requests, or SIDR REQs in the port space UDP. Any goroutines may
// call its methods at the same time.
type Listener struct {
	cm      CM
	ids     []*ID        // one for each address
	left    atomic.Int32 // of them, whose devices are there
	options ListenOptions
	addr    netip.AddrPort

	// queue holds the requests that Accept has not returned. Its capacity is
	// the backlog; only Receive adds to it, so Receive never waits.
	queue chan *ID

	mu     sync.Mutex // held to add to queue and to close closed
	closed chan struct{}
	failed chan struct{} // closed when the devices are gone
}

// Listen listens at an address, where port 0 means a free one. The unspecified IPv4 and IPv6
// addresses accept that family alone, a zero Addr accepts both.
func (m CM) Listen(local netip.AddrPort, o ListenOptions) (*Listener, error) {
	if err := refuseAtAll(sysInfiniband, local); err != nil {
		return m.listenAtEach(local, o, err)
	}
	if local.Addr().IsValid() {
		return m.listen(o, true, local)
	}
	l, err := m.listen(o, false, netip.AddrPortFrom(netip.IPv6Unspecified(), local.Port()))
	if err != nil && isNoIPv6(err) {
		return m.listen(o, false, netip.AddrPortFrom(netip.IPv4Unspecified(), local.Port()))
	}
	return l, err
}

// listen listens at addresses, one at least. The Listener's is the first.
func (m CM) listen(o ListenOptions, v6only bool, at ...netip.AddrPort) (*Listener, error) {
	l := &Listener{
		cm:      m,
		options: o,
		queue:   make(chan *ID, max(o.Backlog, 1)),
		closed:  make(chan struct{}),
		failed:  make(chan struct{}),
	}
	l.left.Store(int32(len(at)))
	for _, local := range at {
		if err := l.add(local, v6only); err != nil {
			_ = l.Close()
			return nil, err
		}
	}
	l.addr = fromSockaddr(&l.ids[0].cm.src)
	return l, nil
}

// add begins to listen at an address.
func (l *Listener) add(local netip.AddrPort, v6only bool) error {
	id, err := l.cm.bind(local, v6only)
	if isErrno(err, syscall.EADDRNOTAVAIL) && local.Port() != 0 {
		if free, err2 := l.cm.bind(netip.AddrPortFrom(local.Addr(), 0), v6only); err2 == nil {
			_ = free.Close()
			err = addrError("rdma_bind_addr", syscall.EADDRINUSE, local.Addr()) // the kernel's errno only if both bound the same address
		}
	}
	if err != nil {
		return err
	}
	l.ids = append(l.ids, id)
	l.cm.register(id.cm, l)
	// 0 means the longest backlog that the kernel allows. The kernel drops requests
	// beyond it, and the dialer repeats them only seconds later, while Receive rejects
	// those beyond queue at once.
	if rc := C.rn_listen(id.cm, 0); rc != 0 {
		return addrError("rdma_listen", syscall.Errno(rc), local.Addr())
	}
	return nil
}

// Receive implements [receiver].
func (l *Listener) Receive(ev Event) {
	switch ev.Kind {
	case connectRequest:
		if err := refuseIWARP(ev.request); err != nil {
			l.cm.refuse(ev.request, l.options.Refusal(err))
		} else if !l.enqueue(ev) {
			l.cm.refuse(ev.request, l.options.Full)
		}
	case deviceRemoval:
		if l.left.Add(-1) == 0 {
			close(l.failed)
		}
	}
}

func (l *Listener) enqueue(ev Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		return false
	default:
	}
	id := l.cm.newID(ev.request)
	id.private = ev.Private
	id.local, id.remote = inZone(fromSockaddr(&ev.request.src), fromSockaddr(&ev.request.dst))
	select {
	case l.queue <- id:
		return true
	default:
		l.cm.forget(ev.request)
		return false
	}
}

// Accept returns the next request, which its caller answers or closes. The error is net.ErrClosed
// after Close, and fabric.ErrDeviceRemoved when the device is gone at whose address it listens.
func (l *Listener) Accept() (*ID, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case id := <-l.queue:
		return id, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-l.failed:
		return nil, fabric.ErrDeviceRemoved
	}
}

// Addr returns the address that it listens at, with the port: the unspecified one for those of each card.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// Close rejects the requests that Accept has not returned, and wakes it.
func (l *Listener) Close() error {
	l.mu.Lock()
	select {
	case <-l.closed:
		l.mu.Unlock()
		return net.ErrClosed
	default:
	}
	close(l.closed)
	l.mu.Unlock()

	var err error
	for _, id := range l.ids {
		err = errors.Join(err, id.Close())
	}
	for {
		select {
		case id := <-l.queue:
			_ = id.Reject(nil)
			_ = id.Close()
		default:
			return err
		}
	}
}

// isNoIPv6 reports whether a bind failed because this system has no IPv6.
func isNoIPv6(err error) bool {
	return isErrno(err, syscall.EAFNOSUPPORT, syscall.EADDRNOTAVAIL, syscall.EINVAL)
}
