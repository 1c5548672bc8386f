//go:build linux && cgo

package ud

// Resolving an address to a queue pair: the sender's side of section 2 of
// protocol.md.

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/ringnet/ringnet/internal/rdmacore"
)

// addressHandle implements [AddressHandle].
type addressHandle struct {
	q          *queuePair
	to         netip.AddrPort
	receiver   qpAddress
	maxMessage int
	gone       atomic.Bool // the receiver's queue pair has ended
	cancel     func()      // ends watch, or a group's membership

	// Guarded by q.sending.
	ah       rdmacore.AddressHandle // the zero one once q is closed
	released bool
}

// qpAddress is the number and the Q_Key that senders address a queue pair by.
type qpAddress struct{ number, key uint32 }

// resolution is the answer of a receiver.
type resolution struct {
	service    rdmacore.Service
	maxMessage int
	key        uint32
	asked      *rdmacore.ID // the request for the queue pair, whose route its datagrams take
	watching   *rdmacore.ID // the request to watch, answered when the queue pair ends
}

func (r *resolution) receiver() qpAddress { return qpAddress{r.service.Number, r.key} }

// Resolve implements [Endpoint].
func (d *endpoint) Resolve(ctx context.Context, to netip.AddrPort) (AddressHandle, error) {
	if d.v6Only && to.Addr().Is4() {
		return nil, &net.AddrError{Err: "non-IPv6 address", Addr: to.Addr().String()}
	}
	if to.Addr().IsMulticast() {
		return d.resolveGroup(ctx, to)
	}
	h, _, err := d.resolveReceiver(ctx, to)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// resolveReceiver is Resolve for one receiver. It also returns the request to watch it.
func (d *endpoint) resolveReceiver(ctx context.Context, to netip.AddrPort) (*addressHandle, *rdmacore.ID, error) {
	h := &addressHandle{to: to}
	r, err := d.resolve(ctx, h)
	if err != nil {
		return nil, nil, err
	}
	defer r.asked.Close()
	h.receiver, h.maxMessage = r.receiver(), r.maxMessage
	if err := d.prepare(h, r.asked, &r.service); err != nil {
		_ = r.watching.Close()
		d.forget(h)
		return nil, nil, err
	}
	if !d.startWatch(h, r) {
		_ = r.watching.Close()
		d.forget(h)
		h.q.release(h)
		return nil, nil, net.ErrClosed
	}
	return h, r.watching, nil
}

// prepare makes h usable: it gives it a queue pair at the port of an ID, and an address handle
// for at. If that queue pair is closed meanwhile, it uses another.
func (d *endpoint) prepare(h *addressHandle, id *rdmacore.ID, at *rdmacore.Service) error {
	for {
		q, err := d.queueFor(id)
		if err != nil {
			return err
		}
		h.q, h.maxMessage = q, min(h.maxMessage, q.maxMessage())
		if err := q.setAddressHandle(h, at); !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
}

// startWatch starts the goroutine that watches h's receiver until h is closed. It returns
// false if the endpoint is closed.
func (d *endpoint) startWatch(h *addressHandle, r *resolution) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	var ctx context.Context
	ctx, h.cancel = context.WithCancel(d.ctx)
	d.background.Go(func() { h.watch(ctx, r.watching) })
	return true
}

// Close implements [AddressHandle]. What was sent has left the device by then.
func (h *addressHandle) Close() {
	h.cancel()
	h.q.d.forget(h)
	h.q.release(h)
}

// watch waits until the receiver's queue pair has ended, or h is closed, and marks h as
// gone. The queue pair has ended when the receiver or its kernel has answered the
// request to watch, or when the request has timed out and the address does not lead to
// the same queue pair any more.
func (h *addressHandle) watch(ctx context.Context, watching *rdmacore.ID) {
	defer h.q.d.forget(h) // Close has, but perhaps while h was resolved again
	defer h.gone.Store(true)
	for {
		_, err := awaitService(ctx, watching, nil)
		_ = watching.Close()
		if !errors.Is(err, syscall.ETIMEDOUT) {
			return
		}
		if watching = h.resolveAgain(ctx); watching == nil {
			return
		}
	}
}

// resolveAgain resolves the address again. It returns the new request to watch, or nil
// if the address does not lead to the same queue pair any more.
func (h *addressHandle) resolveAgain(ctx context.Context) (watching *rdmacore.ID) {
	ctx, cancel := context.WithTimeout(ctx, rdmacore.ResolveTimeout)
	defer cancel()
	d := h.q.d
	d.forget(h) // the last request has timed out
	r, err := d.resolve(ctx, h)
	if err != nil {
		return nil
	}
	defer r.asked.Close()
	if r.receiver() != h.receiver || d.queueAt(r.asked) != h.q || h.q.setAddressHandle(h, &r.service) != nil {
		_ = r.watching.Close()
		return nil
	}
	return r.watching
}

// expect adds h to handles under the number of its requests, before they are sent: the
// receiver's notice that its queue pair has ended may arrive before h is complete.
func (d *endpoint) expect(h *addressHandle, id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handles[id] = h
}

// forget undoes expect, for all numbers that the requests of h have had.
func (d *endpoint) forget(h *addressHandle) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.handles, func(_ uint64, other *addressHandle) bool { return other == h })
}

// resolve makes both requests to the address of a handle, and waits for the answer. It
// repeats them if the receiver has no room for them.
func (d *endpoint) resolve(ctx context.Context, h *addressHandle) (found *resolution, err error) {
	err = patiently(ctx, func() (err error) {
		id := randomID()
		d.expect(h, id)
		found, err = d.ask(ctx, h.to, id)
		return err
	})
	if err != nil {
		d.forget(h)
	}
	return found, err
}

// randomID is a random number for the requests of a handle.
func randomID() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])
}

// ask makes both requests once, and waits for the answer.
func (d *endpoint) ask(ctx context.Context, to netip.AddrPort, id uint64) (*resolution, error) {
	watching, err := d.request(ctx, to, request{Kind: watchKind, ID: id, Port: d.local.Port()})
	if err != nil {
		return nil, err
	}
	asked, err := d.request(ctx, to, request{Kind: askKind, ID: id})
	if err != nil {
		_ = watching.Close()
		return nil, err
	}
	ev, err := awaitService(ctx, asked, watching)
	reply, ok := decodeReply(ev.Private)
	if err == nil && !ok {
		err = fmt.Errorf("what listens for datagrams there is not ringnet: %w", syscall.EPROTO)
	}
	if err != nil {
		_ = asked.Close()
		_ = watching.Close()
		return nil, err
	}
	return &resolution{
		service: ev.Service, maxMessage: int(reply.MaxMessage), key: reply.Key,
		asked: asked, watching: watching,
	}, nil
}

// request sends a request to an address, from the endpoint's own unless that is
// unspecified.
func (d *endpoint) request(ctx context.Context, to netip.AddrPort, r request) (*rdmacore.ID, error) {
	var from netip.AddrPort
	if a := d.local.Addr(); !a.IsUnspecified() {
		from = netip.AddrPortFrom(a, 0)
	}
	return d.sendRequest(ctx, from, to, r.append(nil))
}

// sendRequest sends private data from one address to another, in an SIDR REQ with an id
// of its own.
func (d *endpoint) sendRequest(ctx context.Context, from, to netip.AddrPort, private []byte) (*rdmacore.ID, error) {
	id, err := d.cm.Resolve(ctx, from, to)
	if err != nil {
		return nil, err
	}
	if err := id.Connect(0, 0, 0, private); err != nil {
		_ = id.Close()
		return nil, err
	}
	return id, nil
}

// awaitService waits for the answer to a request. It returns an error if an answer to
// other arrives first.
func awaitService(ctx context.Context, id, other *rdmacore.ID) (rdmacore.Event, error) {
	var others <-chan rdmacore.Event
	if other != nil {
		others = other.Events()
	}
	for {
		var ev rdmacore.Event
		own := true
		select {
		case ev = <-id.Events():
		case ev = <-others:
			own = false
		case <-ctx.Done():
			return rdmacore.Event{}, ctx.Err()
		}
		switch err := ev.Err(); {
		case err != nil:
			return rdmacore.Event{}, err
		case ev.Kind == rdmacore.Established && own:
			return ev, nil
		case ev.Kind == rdmacore.Established: // a request to watch is never answered so
			return rdmacore.Event{}, os.NewSyscallError("rdma_connect", syscall.EPROTO)
		}
	}
}
