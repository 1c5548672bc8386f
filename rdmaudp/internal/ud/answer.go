//go:build linux && cgo

package ud

// Requests for a queue pair, and requests to watch it: the receiver's side of section
// 2 of protocol.md.

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
	"github.com/ringnet/ringnet/internal/wire"
)

const (
	// maxRequests is the maximum number of requests that wait for the other one of their
	// sender.
	maxRequests = 128

	// maxWatchers is the maximum number of watchers of a queue pair.
	maxWatchers = 1024

	// maxWatcherAge is how long a sender repeats a request to watch: 16 times, every
	// 4.096 s.
	maxWatcherAge = 70 * time.Second

	// noticesWithin bounds the time to notify the watchers of a queue pair that has ended.
	noticesWithin = time.Second

	// maxReason is the maximum length in bytes of a rejection's reason, which follows the
	// first 8 bytes in the private data of an SIDR REP
	// (IB_CM_SIDR_REP_PRIVATE_DATA_SIZE).
	maxReason = 136 - 8
)

// serve handles the requests that arrive, until the endpoint is closed or its device is
// gone.
func (d *endpoint) serve() {
	for {
		id, err := d.listener.Accept()
		if err != nil {
			if errors.Is(err, fabric.ErrDeviceRemoved) {
				d.lost(err)
			}
			return
		}
		d.handleRequest(id)
	}
}

// pendingRequest is a request that has not been answered yet.
type pendingRequest struct {
	request
	id   *rdmacore.ID
	from netip.Addr
}

// watcher is a sender's request to watch a queue pair.
type watcher struct {
	pendingRequest
	since time.Time
}

// handleRequest answers a sender when both of its requests have arrived. If the request
// is a receiver's notice that its queue pair has ended, handleRequest ends the handle
// for it.
func (d *endpoint) handleRequest(id *rdmacore.ID) {
	r, ok := decodeRequest(id.Private())
	from := id.RemoteAddr().Addr()
	if !ok || r.Kind == endedKind {
		if ok {
			d.endHandle(r.ID, from)
		}
		_ = id.Close() // rejects the request
		return
	}
	asks := pendingRequest{r, id, from}
	watches, crowded := d.pair(asks)
	if crowded.id != nil {
		refuse(wire.Full, crowded.id)
	}
	if watches.id == nil {
		return
	}
	if r.Kind == watchKind {
		asks, watches = watches, asks
	}
	d.answer(asks.id, watches)
}

// endHandle marks as gone the handle whose requests have the number id, if it leads to the
// address.
func (d *endpoint) endHandle(id uint64, at netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.handles[id]; h != nil && h.to.Addr() == at {
		h.gone.Store(true)
	}
}

// pair removes and returns the other request of r's sender. If there is none, it keeps
// r, and returns in crowded the request that the caller is to reject to make room, if
// any: r itself if the endpoint is closed.
func (d *endpoint) pair(r pendingRequest) (other, crowded pendingRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.requests, func(o pendingRequest) bool {
		return o.ID == r.ID && o.Kind != r.Kind && o.from == r.from
	})
	switch {
	case d.closed:
		return other, r
	case i >= 0:
		other = d.requests[i]
		d.requests = slices.Delete(d.requests, i, i+1)
		return other, crowded
	}
	d.requests = append(d.requests, r)
	if len(d.requests) > maxRequests {
		i := victim(d.requests, func(r pendingRequest) netip.Addr { return r.from })
		crowded = d.requests[i]
		d.requests = slices.Delete(d.requests, i, i+1)
	}
	return other, crowded
}

// victim is the index, in a list with the oldest first, of the element that makes room
// for others: the oldest from the address with the most. So no address displaces the
// requests of one that has fewer.
func victim[T any](all []T, from func(T) netip.Addr) int {
	counts := make(map[netip.Addr]int)
	most := 0
	for _, v := range all {
		a := from(v)
		counts[a]++
		most = max(most, counts[a])
	}
	return slices.IndexFunc(all, func(v T) bool { return counts[from(v)] == most })
}

// answer answers the request for a queue pair, and keeps the sender's request to watch
// it.
func (d *endpoint) answer(asks *rdmacore.ID, watches pendingRequest) {
	q, err := d.queueFor(asks)
	switch {
	case err == nil:
	case rdmacore.IsShortage(err):
		why := err.Error()
		refuse(wire.Reject{Busy: true, Reason: why[:min(len(why), maxReason)]}, asks, watches.id)
		return
	default:
		_ = asks.Close()
		_ = watches.id.Close()
		return
	}
	forgotten, ok := d.addWatcher(q, watches)
	for _, w := range forgotten {
		_ = w.id.Close()
	}
	if !ok {
		refuse(wire.Full, asks, watches.id)
		return
	}
	reply := reply{MaxMessage: uint16(min(q.maxMessage(), d.limits.MaxMessage)), Key: q.key}
	_ = asks.Accept(q.qp.Number(), reply.append(nil))
	_ = asks.Close()
}

// addWatcher adds r to the watchers of q. It removes and returns those that are older than
// maxWatcherAge or too many. It returns false if q has been closed meanwhile.
func (d *endpoint) addWatcher(q *queuePair, r pendingRequest) (forgotten []watcher, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Contains(*d.queues.Load(), q) {
		return nil, false
	}
	q.watchers = append(q.watchers, watcher{r, time.Now()})
	for {
		i := 0
		switch {
		case time.Since(q.watchers[0].since) > maxWatcherAge:
		case len(q.watchers) > maxWatchers:
			i = victim(q.watchers, func(w watcher) netip.Addr { return w.from })
		default:
			return forgotten, true
		}
		forgotten = append(forgotten, q.watchers[i])
		q.watchers = slices.Delete(q.watchers, i, i+1)
	}
}

// refuse rejects and closes requests. Of the two of a sender either may be rejected
// first.
func refuse(r wire.Reject, requests ...*rdmacore.ID) {
	for _, id := range requests {
		_ = id.Reject(r.Append(nil))
		_ = id.Close()
	}
}

// end closes a queue pair that the caller has removed from the endpoint. It rejects the
// watchers' requests, and notifies the watchers in the background.
func (d *endpoint) end(q *queuePair) {
	for _, w := range q.watchers {
		_ = w.id.Close() // rejects the request
	}
	if len(q.watchers) > 0 {
		d.background.Go(func() { d.notifyWatchers(q.watchers) })
	}
	q.close()
}

// notifyWatchers notifies the watchers of a queue pair that it has ended, so that they
// resolve the address again before they send more. All are notified at once: those that do
// not answer delay no other.
func (d *endpoint) notifyWatchers(watchers []watcher) {
	ctx, cancel := context.WithTimeout(context.Background(), noticesWithin)
	defer cancel()
	var notices sync.WaitGroup
	for _, w := range watchers {
		notices.Go(func() { _ = patiently(ctx, func() error { return d.notifyWatcher(ctx, w) }) })
	}
	notices.Wait()
}

// notifyWatcher notifies a watcher, and waits for its answer. It sends the notice from the
// address that the request to watch was sent to: the sender ignores one from any other.
func (d *endpoint) notifyWatcher(ctx context.Context, w watcher) error {
	from, at := netip.AddrPortFrom(w.id.LocalAddr().Addr(), 0), netip.AddrPortFrom(w.from, w.Port)
	id, err := d.sendRequest(ctx, from, at, request{Kind: endedKind, ID: w.ID}.append(nil))
	if err != nil {
		return err
	}
	defer id.Close()
	_, err = awaitService(ctx, id, nil)
	return err
}
