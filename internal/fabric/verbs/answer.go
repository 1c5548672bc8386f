//go:build linux && cgo

package verbs

// Who asks for a queue pair, and who watches it: the receiver's side of section 12.2 of
// docs/protocol.md.

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

const (
	// maxRequests is how many requests wait for the other of the same sender.
	maxRequests = 128

	// maxWatchers is how many senders a queue pair tells that it has gone.
	maxWatchers = 1024

	// watchesWithin is how long a request is repeated: 16 times, every 4.096 s.
	watchesWithin = 70 * time.Second

	// tellWithin is how long the end of a queue pair waits for those who send to it to
	// know, and maxTelling how many are told at once.
	tellWithin = time.Second
	maxTelling = 32

	// maxWhy is how many bytes of words fit behind the first 8 of a rejection, in the
	// private data of an SIDR REP (IB_CM_SIDR_REP_PRIVATE_DATA_SIZE).
	maxWhy = 136 - 8
)

// serve answers who asks for the queue pair, until the endpoint is closed, or its device
// has gone.
func (d *datagrams) serve() {
	for {
		e, err := d.listener.Accept()
		if err != nil {
			if errors.Is(err, fabric.ErrDeviceRemoved) {
				d.lost(err)
			}
			return
		}
		d.consider(e.(*endpoint))
	}
}

// pendingRequest waits for the other of the same sender.
type pendingRequest struct {
	wire.ResolutionRequest
	e *endpoint
}

func (r pendingRequest) from() netip.Addr { return r.e.remote.Addr() }

// watcher is a sender that wants to be told when a queue pair has gone.
type watcher struct {
	pendingRequest
	since time.Time
}

// consider answers a sender that has made both requests, and a receiver that says that its
// queue pair has ended.
func (d *datagrams) consider(e *endpoint) {
	r, ok := wire.DecodeResolutionRequest(e.private)
	if !ok || r.Kind == wire.Ended {
		if ok {
			d.ended(r.ID, e.remote.Addr())
		}
		_ = e.Close() // which rejects what has not been answered
		return
	}
	asks := pendingRequest{r, e}
	watches, crowded := d.pair(asks)
	if crowded.e != nil {
		refuse(wire.Full, crowded.e)
	}
	if watches.e == nil {
		return
	}
	if r.Kind == wire.Watches {
		asks, watches = watches, asks
	}
	d.answer(asks.e, watches)
}

// ended has the handle of a request that has a number be of no use any more, if that is one
// for an address.
func (d *datagrams) ended(id uint64, at netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.handles[id]; h != nil && h.to.Addr() == at {
		h.gone.Store(true)
	}
}

// pair returns the other request of the same sender. If there is none, it keeps the one
// given, and returns which other has to make room.
func (d *datagrams) pair(r pendingRequest) (other, crowded pendingRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.requests, func(o pendingRequest) bool {
		return o.ID == r.ID && o.Kind != r.Kind && o.from() == r.from()
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
		i := crowder(d.requests, pendingRequest.from)
		crowded = d.requests[i]
		d.requests = slices.Delete(d.requests, i, i+1)
	}
	return other, crowded
}

// crowder is the place, in a list that begins with the oldest, of who is to make room: the
// oldest of the address that has the most. So who asks for much takes nobody else's place.
func crowder[T any](all []T, from func(T) netip.Addr) int {
	counts := make(map[netip.Addr]int)
	most := 0
	for _, v := range all {
		a := from(v)
		counts[a]++
		most = max(most, counts[a])
	}
	return slices.IndexFunc(all, func(v T) bool { return counts[from(v)] == most })
}

// answer tells a sender which queue pair there is, and keeps its other request.
func (d *datagrams) answer(asks *endpoint, watches pendingRequest) {
	q, err := d.use(asks)
	switch {
	case err == nil:
	case isShortage(err):
		why := err.Error()
		refuse(wire.Reject{Busy: true, Reason: why[:min(len(why), maxWhy)]}, asks, watches.e)
		return
	default:
		_ = asks.Close()
		_ = watches.e.Close()
		return
	}
	forgotten, ok := d.watch(q, watches)
	for _, w := range forgotten {
		_ = w.e.Close()
	}
	if !ok {
		refuse(wire.Full, asks, watches.e)
		return
	}
	reply := wire.ResolutionReply{MaxMessage: uint16(min(q.maxMessage(), d.limits.MaxMessage)), Key: q.key}
	data, n := privateData(reply.Append(nil))
	C.rn_accept(asks.id, q.qpNum, 0, data, n)
	_ = asks.Close()
}

// watch keeps the request of a sender, and returns those that are too old to have anybody
// wait for them, or too many. It returns false if the queue pair has gone meanwhile.
func (d *datagrams) watch(q *datagramQueue, r pendingRequest) (forgotten []watcher, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Contains(*d.queues.Load(), q) {
		return nil, false
	}
	q.watchers = append(q.watchers, watcher{r, time.Now()})
	for {
		i := 0
		switch {
		case time.Since(q.watchers[0].since) > watchesWithin:
		case len(q.watchers) > maxWatchers:
			i = crowder(q.watchers, watcher.from)
		default:
			return forgotten, true
		}
		forgotten = append(forgotten, q.watchers[i])
		q.watchers = slices.Delete(q.watchers, i, i+1)
	}
}

// refuse rejects requests: if both of a sender, it does not matter of which it hears first.
func refuse(r wire.Reject, requests ...*endpoint) {
	for _, e := range requests {
		_ = e.Reject(r.Append(nil))
		_ = e.Close()
	}
}

// end closes a queue pair that is the endpoint's no more, and has those told who send to it.
func (d *datagrams) end(q *datagramQueue) {
	for _, w := range q.watchers {
		_ = w.e.Close() // rejects the request
	}
	if len(q.watchers) > 0 {
		d.background.Go(func() { tellAll(q.watchers, d.tell) })
	}
	q.close()
}

// tellAll tells those who watched a queue pair that it has ended, so that what they send
// from now on goes to whoever listens at the address then. All get a first turn in half of
// the time, whoever does not answer, and those who have not answered longer ones.
func tellAll(watchers []watcher, tell func(context.Context, watcher) error) {
	ctx, cancel := context.WithTimeout(context.Background(), tellWithin)
	defer cancel()
	turn := tellWithin / 2 * maxTelling / time.Duration(len(watchers))
	for ; len(watchers) > 0 && ctx.Err() == nil; turn *= 2 {
		watchers = tellInTurn(ctx, turn, watchers, tell)
	}
}

// tellInTurn tells each of the watchers, if it answers within its turn, and returns the
// others.
func tellInTurn(ctx context.Context, turn time.Duration, watchers []watcher, tell func(context.Context, watcher) error) (silent []watcher) {
	var telling sync.WaitGroup
	var mu sync.Mutex // guards silent
	turns := make(chan struct{}, maxTelling)
	for _, w := range watchers {
		turns <- struct{}{}
		telling.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, turn)
			defer cancel()
			_ = fabric.Patiently(ctx, func() error { return tell(ctx, w) })
			if ctx.Err() != nil {
				mu.Lock()
				silent = append(silent, w)
				mu.Unlock()
			}
			<-turns
		})
	}
	telling.Wait()
	return silent
}

// tell tells one, and waits until it knows. The notice has to come from the address that
// the sender has asked.
func (d *datagrams) tell(ctx context.Context, w watcher) error {
	from, at := netip.AddrPortFrom(w.e.local.Addr(), 0), netip.AddrPortFrom(w.from(), w.Port)
	e, err := d.say(ctx, from, at, wire.ResolutionRequest{Kind: wire.Ended, ID: w.ID}.Append(nil))
	if err != nil {
		return err
	}
	defer e.Close()
	_, err = e.awaitService(ctx, nil)
	return err
}
