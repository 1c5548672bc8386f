package link

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/budget"
)

// Pool is links that this process has dialed, for more streams to begin on. The
// zero Pool is ready for use.
type Pool[K comparable] struct {
	mu     sync.Mutex
	places map[K]*place // with a link, or while one is being made
}

// place is the links with one key. Guarded by Pool.mu.
type place struct {
	links  []*pooled // that are up or may be again, or that a dial is about to make; the oldest first
	making bool      // More.Connect is under way
	rest   time.Time // until then it is not called again
}

// pooled is a link, or one that a dial is about to make.
type pooled struct {
	made    chan struct{} // closed when link or err is set
	link    *Link
	err     error
	givenUp bool         // the dial that made it has given up; another may try
	dials   atomic.Int32 // on it that are under way
}

// More is about links beyond the first with one key. The zero More is that there
// are none.
type More struct {
	Links   int                   // with one key that streams begin on
	Connect func() (*Link, error) // makes one without a stream

	// Answer is how long a peer may answer no OPEN on a link before dials pass it over, until
	// it answers again. 0: for ever.
	Answer time.Duration
}

// busyLink is how many streams each link carries before another link is made. One link
// serves as many processors (see Config.Links); fewer streams use no more than those,
// and gain nothing by another link.
const busyLink = 8

// restTime is how long no link beyond the first is made after an attempt to make one has
// failed, or one has ended.
const restTime = 10 * time.Second

// Dial begins a stream on the least loaded link that the pool has for a key. If there is
// none, or none that answers and has room for another stream, it makes one with connect, and other dials with the same key wait
// for that. No dial waits for a link beyond these, or fails because there is none.
func (p *Pool[K]) Dial(ctx context.Context, key K, connect func(context.Context) (*Stream, error), more More) (*Stream, error) {
	var full []*pooled // links that had no room for this stream
	for ctx.Err() == nil {
		entry, found := p.find(key, more, full)
		switch found {
		case toMake:
			return p.connect(ctx, key, entry, connect)
		case inMaking:
			if err := entry.await(ctx); err != nil {
				return nil, err
			}
			continue
		}
		s, err := entry.link.openWithin(ctx, more.Answer)
		entry.dials.Add(-1)
		switch {
		case err == errSilent:
			continue
		case isFull(err):
			full = append(full, entry)
			continue
		}
		if err == nil || !errors.Is(err, errLeaving) && entry.link.usable() {
			return s, err
		}
		if !entry.link.lacksPath.Load() {
			p.forget(key, entry)
		}
	}
	return nil, ctx.Err()
}

// connect makes the link of an entry. Until connect has returned, the entry counts as given
// up, for it calls functions of users, which may panic.
func (p *Pool[K]) connect(ctx context.Context, key K, entry *pooled, connect func(context.Context) (*Stream, error)) (*Stream, error) {
	entry.err, entry.givenUp = ErrLost, true
	defer p.made(key, entry)
	s, err := connect(ctx)
	entry.err, entry.givenUp = err, ctx.Err() != nil || errors.Is(err, ErrLost)
	if err == nil {
		entry.link = s.link
	}
	return s, err
}

// ErrLost reports a link that is not wanted any more, because a TCP connection was faster.
var ErrLost = errors.New("TCP was connected first")

// progress is how far the link is that find returns, at that moment.
type progress int

const (
	toMake   progress = iota // by the caller
	inMaking                 // by another dial
	carrying                 // made; this dial is counted in pooled.dials
)

// isFull reports whether a link has no room for another stream: no number, or no memory that a link may
// have for rings. Where the peer has none, it refuses so that the link is forgotten.
func isFull(err error) bool {
	var shortage *budget.ShortageError
	return errors.Is(err, errNumbers) || errors.As(err, &shortage) && shortage.Of == budget.LinkMemory
}

// find returns the link for the next stream with a key, none of those that are full.
func (p *Pool[K]) find(key K, more More, full []*pooled) (*pooled, progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.places[key]
	if at == nil {
		if p.places == nil {
			p.places = make(map[K]*place)
		}
		at = new(place)
		p.places[key] = at
	}
	entry := at.leastLoaded(more, full)
	if entry == nil {
		entry = &pooled{made: make(chan struct{})}
		at.links = append(at.links, entry)
		return entry, toMake
	}
	if !entry.up() {
		return entry, inMaking
	}
	if more.Links > len(at.links) && !at.making && entry.load() >= busyLink && !time.Now().Before(at.rest) {
		at.making = true
		go p.makeMore(key, at, more.Connect)
	}
	entry.dials.Add(1)
	return entry, carrying
}

// Up reports whether the pool has a link with a key on which streams can begin, where the peer
// has answered within a time: see More.Answer.
func (p *Pool[K]) Up(key K, answer time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.places[key]
	if at == nil {
		return false
	}
	entry := at.leastLoaded(More{Links: len(at.links), Answer: answer}, nil)
	return entry != nil && entry.up()
}

// leastLoaded returns the link that is up with the fewest streams, of the oldest that
// have not lost their path, on which the peer answers and that are not full, or one that is being made, or nil if
// there is neither. A link that has its path again, or answers again, is the oldest again: what was
// made meanwhile idles and leaves. Called with Pool.mu held.
func (at *place) leastLoaded(more More, full []*pooled) (least *pooled) {
	n := max(1, more.Links)
	for _, entry := range at.links {
		if entry.up() && (entry.link.lacksPath.Load() || entry.link.silentFor(more.Answer)) || slices.Contains(full, entry) {
			continue
		}
		if least == nil || entry.up() && (!least.up() || entry.load() < least.load()) {
			least = entry
		}
		if n--; n == 0 {
			break
		}
	}
	return least
}

// up reports whether the link has been made.
func (entry *pooled) up() bool {
	select {
	case <-entry.made:
		return true
	default:
		return false
	}
}

// load is how many streams the link carries and is about to carry. Dials under way
// whose OPEN has been sent have theirs in the table.
func (entry *pooled) load() int {
	return int(entry.link.streams.live.Load()) - len(entry.link.streams.opens) + int(entry.dials.Load())
}

// await waits until the link has been made, or not. It returns why the dial has failed, or
// nil if the dial is to look for a link again.
func (entry *pooled) await(ctx context.Context) error {
	select {
	case <-entry.made:
	case <-ctx.Done():
		return ctx.Err()
	}
	if entry.givenUp {
		return nil
	}
	return entry.err
}

// made ends the making of a link. One that was not made is not kept.
func (p *Pool[K]) made(key K, entry *pooled) {
	if entry.err != nil {
		p.forget(key, entry)
	} else {
		entry.link.OnEnd(func() { p.forget(key, entry) })
	}
	close(entry.made)
}

// makeMore makes a link beyond the first.
func (p *Pool[K]) makeMore(key K, at *place, connect func() (*Link, error)) {
	l, err := connect()
	entry := &pooled{made: make(chan struct{}), link: l}
	close(entry.made)
	p.mu.Lock()
	at.making = false
	if err == nil {
		at.links = append(at.links, entry)
	} else {
		p.rest(key, at)
	}
	p.mu.Unlock()
	if err == nil {
		l.OnEnd(func() { p.forget(key, entry) })
	}
}

func (p *Pool[K]) forget(key K, entry *pooled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.places[key]
	if at == nil {
		return
	}
	if i := slices.Index(at.links, entry); i >= 0 {
		at.links = slices.Delete(at.links, i, i+1)
		p.rest(key, at)
	}
}

// rest has no link made for a place for a while, and deletes the place if it has no link.
// Called with mu held.
func (p *Pool[K]) rest(key K, at *place) {
	at.rest = time.Now().Add(restTime)
	if len(at.links) == 0 && !at.making {
		delete(p.places, key)
	}
}
