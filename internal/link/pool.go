package link

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Pool is links that this process has dialed, for more streams to begin on. The
// zero Pool is ready for use.
type Pool[K comparable] struct {
	mu    sync.Mutex
	links map[K]*pooled
}

// pooled is a link, or one that somebody is about to make.
type pooled struct {
	made    chan struct{} // closed when link or err is set
	link    *Link
	err     error
	givenUp bool // err is that its maker did not want it any more
}

// Dial begins a stream on the link that the pool has for a key, or on one that
// it makes with connect, for which others with the same key wait.
func (p *Pool[K]) Dial(ctx context.Context, key K, connect func(context.Context) (*Stream, error), gate Gate) (*Stream, error) {
	for {
		entry, first := p.find(key)
		if first {
			return p.connect(ctx, key, entry, connect)
		}
		select {
		case <-entry.made:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		switch {
		case entry.err != nil && entry.givenUp:
			continue
		case entry.err != nil:
			return nil, entry.err
		}
		s, err := gate.open(ctx, entry.link)
		if err == nil || errors.Is(err, ErrLost) || !errors.Is(err, errLeaving) && entry.link.usable() {
			return s, err
		}
		p.forget(key, entry)
		if ctx.Err() != nil {
			return nil, err
		}
	}
}

// connect makes the link of an entry. Until that has come to an end it counts as
// given up: it calls functions of users, which may panic.
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

// ErrLost says that a link is not wanted any more since something else was
// faster.
var ErrLost = errors.New("not connected when TCP was")

// Gate has a say in whether a stream begins on a link that is up. The zero Gate
// lets all through.
type Gate struct {
	Enter    func() error  // before it begins, and once more if it has been let out
	Leave    func()        // if it then does not begin, or lets Patience pass
	Patience time.Duration // with the peer's answer
}

func (g Gate) open(ctx context.Context, l *Link) (*Stream, error) {
	if g.Enter == nil {
		return l.Open(ctx)
	}
	if err := g.Enter(); err != nil {
		return nil, err
	}
	left := make(chan struct{})
	timer := time.AfterFunc(g.Patience, func() {
		g.Leave()
		close(left)
	})
	s, err := l.Open(ctx)
	if timer.Stop() {
		if err != nil {
			g.Leave()
		}
		return s, err
	}
	<-left
	if err != nil {
		return nil, err
	}
	if err := g.Enter(); err != nil {
		_ = s.Close(0)
		return nil, err
	}
	return s, nil
}

// find returns what the pool has for a key, and whether that is for the caller
// to make.
func (p *Pool[K]) find(key K) (entry *pooled, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if entry = p.links[key]; entry != nil {
		return entry, false
	}
	if p.links == nil {
		p.links = make(map[K]*pooled)
	}
	entry = &pooled{made: make(chan struct{})}
	p.links[key] = entry
	return entry, true
}

// made ends the making of a link. One that was not made is not kept.
func (p *Pool[K]) made(key K, entry *pooled) {
	if entry.err != nil {
		p.forget(key, entry)
	} else {
		entry.link.onEnd(func() { p.forget(key, entry) })
	}
	close(entry.made)
}

func (p *Pool[K]) forget(key K, entry *pooled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.links[key] == entry {
		delete(p.links, key)
	}
}
