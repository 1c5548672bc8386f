package link

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/machine"
)

// Pool is links that this process has dialed, for more streams to begin on. The
// zero Pool is ready for use.
type Pool[K comparable] struct {
	mu     sync.Mutex
	places map[K]*place // with a link, or while one is being made
}

// place is the links with one key. Guarded by Pool.mu.
type place struct {
	links []*pooled // that are up or may be again, or that a dial is about to make; the oldest first
	rest  time.Time // until then no dial makes another beside those that there are
}

// pooled is a link, or one that a dial is about to make.
type pooled struct {
	another bool          // there were others when it was begun, on which dials go on if it fails
	made    chan struct{} // closed when link or err is set
	link    *Link
	err     error
	givenUp bool         // the dial that made it has given up; another may try
	dials   atomic.Int32 // on it that are under way
}

// Connect makes a link and its first stream. another says that there are links already: the
// dial does not fail with this one.
type Connect func(ctx context.Context, another bool) (*Stream, error)

// More is about links beyond the first with one key. The zero More is that there
// are none.
type More struct {
	Links int // with one key that streams begin on

	// Answer is how long a peer may answer no OPEN on a link before dials pass it over, until
	// it answers again. A dial waits half as long for another link that it makes beside those
	// that there are. 0: for ever.
	Answer time.Duration
}

// busyLink is how many streams each link carries before a dial makes another link. One link
// serves as many processors (see Config.Links); fewer streams use no more than those,
// and gain nothing by another link.
const busyLink = 8

// restTime is how long no link beyond the first is made after an attempt to make one has
// failed, or one has ended.
const restTime = 10 * time.Second

// Dial begins a stream on the least loaded link that the pool has for a key. If there is none, or none that answers
// and has room for another stream, it makes one with connect, and other dials with the same key wait for that. If all
// are busy, it makes another with connect, for which no other dial waits, and begins on one of those if that fails.
func (p *Pool[K]) Dial(ctx context.Context, key K, connect Connect, more More) (*Stream, error) {
	var full []*pooled // links that had no room for this stream
	for ctx.Err() == nil {
		entry, found := p.find(key, more, full)
		switch found {
		case toMake:
			s, err := p.connect(ctx, key, entry, connect, more)
			if err != nil && entry.another {
				continue
			}
			return s, err
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
		if err == nil || !errors.Is(err, machine.ErrGoingAway) && entry.link.usable() {
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
func (p *Pool[K]) connect(ctx context.Context, key K, entry *pooled, connect Connect, more More) (*Stream, error) {
	entry.err, entry.givenUp = ErrTCPFirst, true
	defer p.made(key, entry)
	if entry.another && more.Answer > 0 { // half, for a dial of auto has as long in all, and then takes TCP
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, more.Answer/2)
		defer cancel()
	}
	s, err := connect(ctx, entry.another)
	for try, taken := 1, (*takenError)(nil); entry.another && try < tries && errors.As(err, &taken); try++ {
		s, err = connect(ctx, true) // from another port, for no dial asks again as it does for the first link
	}
	entry.err, entry.givenUp = err, entry.another || ctx.Err() != nil || errors.Is(err, ErrTCPFirst)
	if err == nil {
		entry.link = s.link
	}
	return s, err
}

// ErrTCPFirst reports a link that is not wanted any more, because a TCP connection was faster.
var ErrTCPFirst = errors.New("TCP was connected first")

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
	return errors.Is(err, machine.ErrNumbers) || errors.As(err, &shortage) && shortage.Of == budget.LinkMemory
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
	switch {
	case entry == nil:
		return at.add(false), toMake
	case !entry.up():
		return entry, inMaking
	case entry.load() >= busyLink && at.takesAnother(more) && entry.link.roomForAnother():
		return at.add(true), toMake
	}
	entry.dials.Add(1)
	return entry, carrying
}

// add adds a link that the caller is about to make. Called with Pool.mu held.
func (at *place) add(another bool) *pooled {
	entry := &pooled{another: another, made: make(chan struct{})}
	at.links = append(at.links, entry)
	return entry
}

// takesAnother reports whether there may be another link, and none is being made. Called with
// Pool.mu held.
func (at *place) takesAnother(more More) bool {
	return more.Links > len(at.links) && !time.Now().Before(at.rest) &&
		!slices.ContainsFunc(at.links, func(entry *pooled) bool { return !entry.up() })
}

// roomForAnother reports whether there is memory for another link like this one beside what is
// kept for streams that have to begin. It takes no lock of the link.
func (l *Link) roomForAnother() bool {
	a := l.memory.account
	return a.Budget.MayGrow(l.memory.fixed, a.Locked)
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
	return int(entry.link.live.Load()) - len(entry.link.opens) + int(entry.dials.Load())
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
func (p *Pool[K]) rest(key K, at *place) {
	at.rest = time.Now().Add(restTime)
	if len(at.links) == 0 {
		delete(p.places, key)
	}
}
