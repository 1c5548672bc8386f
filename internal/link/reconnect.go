package link

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/limiter"
	"github.com/ringnet/ringnet/internal/wire"
)

// ReconnectListener is the listener of this process for peers that have lost the queue pair of a link
// and ask for another. It listens as long as there are links that need it. The zero ReconnectListener
// with a fabric is ready for use.
type ReconnectListener struct {
	Fabric fabric.Fabric

	opening  sync.Mutex // guards what follows, and is held while the fabric begins to listen
	listener fabric.Listener
	waiting  int                              // links that need the listener
	attempts *limiter.Limiter[netip.AddrPort] // of the links, at another queue pair; set before there is one

	mu       sync.Mutex // guards what follows
	links    map[linkID]*Link
	searched map[netip.AddrPort]*searched
	cards    []fabric.Card // of this host, if the fabric tells
	listed   time.Time     // when they were
	listing  chan struct{} // closed when they have been listed anew; nil if nobody does
}

// linkID identifies a link in requests. Both ends of it may be in this process.
type linkID struct {
	number uint64
	active bool
}

// reconnectBacklog is how many requests the listener queues.
const reconnectBacklog = 128

// open counts a link that needs the listener, which the first one begins, and returns the
// listener's port.
func (r *ReconnectListener) open() (uint16, error) {
	r.opening.Lock()
	defer r.opening.Unlock()
	if r.waiting == 0 {
		l, err := r.Fabric.Listen(netip.AddrPort{}, reconnectBacklog)
		if err != nil {
			return 0, err
		}
		r.listener = l
		if r.attempts == nil {
			r.attempts = limiter.New[netip.AddrPort](attemptsAtOnce, attemptsToProcess)
		}
		go r.serve(l)
	}
	r.waiting++
	return r.listener.Addr().Port(), nil
}

// close ends what open has begun; the last link ends the listener.
func (r *ReconnectListener) close() {
	r.opening.Lock()
	defer r.opening.Unlock()
	if r.waiting--; r.waiting == 0 {
		_ = r.listener.Close()
		r.listener = nil
	}
}

// enter has requests brought to a link. It returns false if another link has the key, for peers
// choose the numbers of the links that they accept.
func (r *ReconnectListener) enter(key linkID, l *Link) (entered bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.links[key] != nil {
		return false
	}
	if r.links == nil {
		r.links = make(map[linkID]*Link)
	}
	r.links[key] = l
	return true
}

// remove frees the key of a link.
func (r *ReconnectListener) remove(key linkID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.links, key)
}

// find returns the link with a key, or nil.
func (r *ReconnectListener) find(key linkID) *Link {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.links[key]
}

// cardsAge is for how long a list of this host's cards is used: to list them may mean to
// open each.
const cardsAge = 5 * time.Second

// others are addresses of this host's other cards than the one with the given address:
// one of each, of the same family. If ctx ends first, they are those that were known before.
func (r *ReconnectListener) others(ctx context.Context, addr netip.Addr) (others []netip.Addr) {
	host, ok := r.Fabric.(fabric.Host)
	if !ok || addr.IsLinkLocalUnicast() {
		return nil
	}
	for _, c := range r.cardsOf(ctx, host) {
		if slices.Contains(c, addr) {
			continue
		}
		if i := slices.IndexFunc(c, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }); i >= 0 {
			others = append(others, c[i])
		}
	}
	return others
}

// cardsOf returns the cards that this host has, or had up to cardsAge ago. One goroutine lists them
// for all who wait, each until its ctx ends.
func (r *ReconnectListener) cardsOf(ctx context.Context, host fabric.Host) []fabric.Card {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.listed) <= cardsAge {
		return r.cards
	}
	done := r.listing
	if done == nil {
		done = make(chan struct{})
		r.listing = done
		go func() {
			cards := host.Cards()
			r.mu.Lock()
			defer r.mu.Unlock()
			r.cards, r.listed, r.listing = cards, time.Now(), nil
			close(done)
		}()
	}
	r.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
	}
	r.mu.Lock()
	return r.cards
}

func (r *ReconnectListener) serve(l fabric.Listener) {
	for {
		ep, err := l.Accept()
		if err != nil {
			return
		}
		go r.take(ep)
	}
}

// Rejections of requests for a link.
var (
	linkIsThere = wire.Reject{Busy: true, Reason: "the link waits for another queue pair"}
	noSuchLink  = wire.Reject{Reason: "there is no such link"}
)

// take brings a request to the link that it is about.
func (r *ReconnectListener) take(ep fabric.Endpoint) {
	request, err := wire.DecodeResumption(ep.Private())
	a := &arrival{ep, request}
	switch l := r.find(linkID{request.Link, request.Passive}); {
	case err != nil:
		a.refuse(wire.Reject{Reason: err.Error()})
	case l == nil || request.Kind != wire.ResumeRequest || !l.path.sealFrom(ep).Fits(ep.Private()):
		a.refuse(noSuchLink)
	default:
		l.arrived(a)
	}
}

// newSecret makes a number and a secret for a link.
func newSecret() (number uint64, secret [wire.SecretSize]byte) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	_, _ = rand.Read(secret[:])
	return binary.BigEndian.Uint64(b[:]), secret
}
