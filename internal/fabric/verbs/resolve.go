//go:build linux && cgo

package verbs

// How datagrams reach an address: the sender's side of section 12.2 of docs/protocol.md.

// #include "shim.h"
import "C"

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// addressHandle implements [fabric.AddressHandle].
type addressHandle struct {
	q          *datagramQueue
	to         netip.AddrPort
	id         uint64 // of the requests; guarded by the endpoint's mu
	receiver   queuePair
	maxMessage int
	ah         *C.struct_rn_ibv_ah // guarded by q's sending; nil once q is closed
	gone       atomic.Bool         // the receiver's queue pair has
	cancel     func()              // ends what there is besides
}

// queuePair is one for datagrams, as senders have to name it.
type queuePair struct{ number, key uint32 }

// resolution is what a receiver has answered.
type resolution struct {
	id         uint64
	service    service
	maxMessage int
	key        uint32
	asked      *endpoint // by the route that the answer is good for
	watching   *endpoint // the request that is answered when the queue pair ends
}

func (r *resolution) receiver() queuePair { return queuePair{r.service.number, r.key} }

// Resolve implements [fabric.DatagramEndpoint].
func (d *datagrams) Resolve(ctx context.Context, to netip.AddrPort) (fabric.AddressHandle, error) {
	if to.Addr().IsMulticast() {
		return d.resolveGroup(ctx, to)
	}
	r, err := d.resolve(ctx, to)
	if err != nil {
		return nil, err
	}
	defer r.asked.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	h := &addressHandle{to: to, id: r.id, receiver: r.receiver(), maxMessage: r.maxMessage}
	if err := d.enter(h, r.asked, &r.service); err != nil {
		_ = r.watching.Close()
		return nil, err
	}
	ctx, h.cancel = context.WithCancel(d.ctx)
	d.background.Go(func() { h.watch(ctx, r.watching) })
	return h, nil
}

// enter makes a handle of use, by what an endpoint has heard at the port over which to
// send. Called with mu held.
func (d *datagrams) enter(h *addressHandle, e *endpoint, at *service) error {
	q, err := d.use(e)
	if err != nil {
		return err
	}
	if rc := C.rn_create_ah(q.e.pd, &at.attr, &h.ah); rc != 0 {
		return deviceError("ibv_create_ah", rc)
	}
	h.q, h.maxMessage = q, min(h.maxMessage, q.maxMessage())
	d.handles[h.id] = h
	return nil
}

// watch finds out that the receiver's queue pair has gone: the receiver has answered, or
// nobody answers, and another, or nobody, is there.
func (h *addressHandle) watch(ctx context.Context, watching *endpoint) {
	defer h.gone.Store(true)
	for {
		_, err := watching.awaitService(ctx)
		_ = watching.Close()
		if !errors.Is(err, syscall.ETIMEDOUT) {
			return
		}
		r, err := h.again(ctx)
		if err != nil {
			return
		}
		_ = r.asked.Close()
		watching = r.watching
		h.rename(r.id)
		if r.receiver() != h.receiver {
			_ = watching.Close()
			return
		}
	}
}

// rename has the handle go by the number of other requests.
func (h *addressHandle) rename(id uint64) {
	d := h.q.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handles[h.id] == h {
		delete(d.handles, h.id)
		h.id = id
		d.handles[id] = h
	}
}

// again resolves the address again.
func (h *addressHandle) again(ctx context.Context) (*resolution, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	return h.q.d.resolve(ctx, h.to)
}

// resolve asks who is at an address, and watches that.
func (d *datagrams) resolve(ctx context.Context, to netip.AddrPort) (*resolution, error) {
	id := randomID()
	watching, err := d.request(ctx, to, wire.ResolutionRequest{Kind: wire.Watches, ID: id, Port: d.local.Port()})
	if err != nil {
		return nil, err
	}
	r, err := d.ask(ctx, to, id)
	if err != nil {
		_ = watching.Close()
		return nil, err
	}
	r.watching = watching
	return r, nil
}

// randomID is a number for requests, and so for a handle.
func randomID() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])
}

// ask asks who is at an address.
func (d *datagrams) ask(ctx context.Context, to netip.AddrPort, id uint64) (*resolution, error) {
	e, err := d.request(ctx, to, wire.ResolutionRequest{Kind: wire.Asks, ID: id})
	if err != nil {
		return nil, err
	}
	ev, err := e.awaitService(ctx)
	reply, ok := wire.DecodeResolutionReply(ev.private)
	if err == nil && !ok {
		err = fmt.Errorf("what listens for datagrams there is not ringnet: %w", syscall.EPROTO)
	}
	if err != nil {
		_ = e.Close()
		return nil, err
	}
	return &resolution{id: id, service: ev.service, maxMessage: int(reply.MaxMessage), key: reply.Key, asked: e}, nil
}

// request sends a request to an address.
func (d *datagrams) request(ctx context.Context, to netip.AddrPort, r wire.ResolutionRequest) (*endpoint, error) {
	return d.say(ctx, to, r.Append(nil))
}

// say sends private data to an address, from the endpoint's own if that has one: an SIDR
// REQ of an id of its own.
func (d *datagrams) say(ctx context.Context, to netip.AddrPort, private []byte) (*endpoint, error) {
	var from netip.AddrPort
	if a := d.local.Addr(); !a.IsUnspecified() {
		from = netip.AddrPortFrom(a, 0)
	}
	ep, err := d.rdma.Dial(ctx, from, to)
	if err != nil {
		return nil, err
	}
	e := ep.(*endpoint)
	data, n := privateData(private)
	if rc := C.rn_connect(e.id, 0, 0, 0, 0, data, n); rc != 0 {
		_ = e.Close()
		return nil, syscallError("rdma_connect", rc)
	}
	return e, nil
}

// awaitService waits for the answer to a request.
func (e *endpoint) awaitService(ctx context.Context) (cmEvent, error) {
	ev, err := e.await(ctx, C.RN_RDMA_CM_EVENT_ESTABLISHED, C.RN_RDMA_CM_EVENT_UNREACHABLE)
	switch {
	case err != nil:
		return cmEvent{}, err
	case ev.kind == C.RN_RDMA_CM_EVENT_ESTABLISHED:
		return ev, nil
	case ev.status > 0: // of the SIDR REP: nobody listens, or the listener has rejected
		return cmEvent{}, &fabric.RejectError{Reason: fabric.RejectNoListener}
	}
	return cmEvent{}, os.NewSyscallError("rdma_connect", syscall.Errno(-ev.status))
}
