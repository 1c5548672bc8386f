package transport

// Whose the handshakes of a listener are, so that none who dials keeps others out.

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// ConfirmWithin is how long a peer may take to confirm the answer to its request while
// other requests find no place. It is long enough for rdma_cm to repeat one lost message,
// which it does after 4 to 6 s.
const ConfirmWithin = 8 * time.Second

// ShareWithin is the same for a peer that has more places than another dialer who finds none:
// far longer than a handshake takes in which no message is lost.
const ShareWithin = time.Second

// source is who dials: a user of this host, or a host.
type source struct {
	user uint32
	host netip.Addr // not valid for a user
}

// sourceOf returns who has dialed an endpoint.
func sourceOf(ep fabric.Endpoint) source {
	if n, ok := ep.(fabric.Neighbor); ok {
		if uid, err := n.PeerUser(); err == nil {
			return source{user: uid}
		}
	}
	return source{host: ep.RemoteAddr().Addr().Unmap()}
}

// handshakes are those under way at a listener, and who waits for a place for one. Guarded by
// Listener.mu.
type handshakes struct {
	all     []*handshake         // the oldest first
	counts  map[source]int       // how many of them each source has
	waiting map[source]time.Time // when who found no place was last told so
}

type handshake struct {
	from   source
	began  time.Time
	ctx    context.Context
	cancel context.CancelFunc
}

func (hs *handshakes) begin(ctx context.Context, from source) *handshake {
	h := &handshake{from: from, began: time.Now()}
	h.ctx, h.cancel = context.WithCancel(ctx)
	hs.all = append(hs.all, h)
	if hs.counts == nil {
		hs.counts = make(map[source]int)
	}
	hs.counts[from]++
	delete(hs.waiting, from)
	return h
}

func (hs *handshakes) end(h *handshake) {
	h.cancel()
	i := slices.Index(hs.all, h)
	hs.all = slices.Delete(hs.all, i, i+1)
	if hs.counts[h.from]--; hs.counts[h.from] == 0 {
		delete(hs.counts, h.from)
	}
}

// waitsFor is for how long a place is kept for a source that was told that there is none: it asks
// again after fabric.LongestPause, or half as much more.
const waitsFor = 2 * fabric.LongestPause

// keptFrom reports whether so many free places are kept from a source: for those that wait, and have
// fewer handshakes under way.
func (hs *handshakes) keptFrom(from source, free int) bool {
	if len(hs.waiting) == 0 {
		return false
	}
	for other, asked := range hs.waiting {
		switch {
		case time.Since(asked) > waitsFor:
			delete(hs.waiting, other)
		case hs.counts[other] < hs.counts[from]:
			free--
		}
	}
	return free <= 0
}

// maxWaiting bounds for how many sources places are kept.
const maxWaiting = 1024

// wait notes that a source has found no place, and makes one for when it asks again: it cancels the
// handshakes whose peers have taken longer than ConfirmWithin and, if others have more under way, the
// oldest of those who have most, unless that is younger than ShareWithin.
func (hs *handshakes) wait(from source) {
	if hs.waiting == nil {
		hs.waiting = make(map[source]time.Time)
	}
	if len(hs.waiting) < maxWaiting {
		hs.waiting[from] = time.Now()
	}
	most := from
	for s, n := range hs.counts {
		if n > hs.counts[most] {
			most = s
		}
	}
	greedy := hs.counts[most] > hs.counts[from]+1
	for _, h := range hs.all {
		switch age := time.Since(h.began); {
		case age >= ConfirmWithin:
			h.cancel()
		case age < ShareWithin || !greedy:
			return
		case h.from == most && h.ctx.Err() == nil:
			h.cancel()
			return
		}
	}
}
