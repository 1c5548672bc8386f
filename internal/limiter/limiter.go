// Package limiter bounds how many connection requests of a process are under way at once. More
// would not arrive sooner: a connection manager loses what it has no room for, and repeats it
// seconds later.
package limiter

import (
	"context"
	"slices"
	"sync"
)

// Limiter bounds the requests to receivers of type K: hosts, or processes. Its methods may be called
// by several goroutines at once.
type Limiter[K comparable] struct {
	most, mostToOne int

	mu       sync.Mutex // guards what follows
	underWay int
	to       map[K]int     // of those, by receiver; no zeros
	waiting  []*request[K] // the oldest first
}

// request is a request that waits for its turn.
type request[K comparable] struct {
	to      K
	granted chan struct{} // closed when it has come
}

// New returns a Limiter of so many requests at once, and so many of them to one receiver, so that one
// that does not answer does not hold up the others.
func New[K comparable](most, mostToOne int) *Limiter[K] {
	return &Limiter[K]{most: most, mostToOne: mostToOne, to: make(map[K]int)}
}

// Enter waits for the turn of a request to a receiver, and returns true; the caller calls Leave when
// the request is over. It returns false if ctx ends before. Of the receivers the one with the fewest
// requests under way comes first, and of requests to it the oldest.
func (l *Limiter[K]) Enter(ctx context.Context, to K) bool {
	own := &request[K]{to, make(chan struct{})}
	l.mu.Lock()
	l.waiting = append(l.waiting, own)
	l.grant()
	l.mu.Unlock()
	select {
	case <-own.granted:
		return true
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, own); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		return false
	}
	return true
}

// Leave ends the turn of a request to a receiver.
func (l *Limiter[K]) Leave(to K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay--
	if l.to[to]--; l.to[to] == 0 {
		delete(l.to, to)
	}
	l.grant()
}

// UnderWay returns how many requests are under way, and how many of them to one receiver.
func (l *Limiter[K]) UnderWay(to K) (all, toOne int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.underWay, l.to[to]
}

// grant grants as many turns as may be under way. Called with mu held.
func (l *Limiter[K]) grant() {
	for l.underWay < l.most {
		next, fewest := -1, l.mostToOne
		for i, r := range l.waiting {
			if l.to[r.to] < fewest {
				next, fewest = i, l.to[r.to]
			}
		}
		if next < 0 {
			return
		}
		r := l.waiting[next]
		l.waiting = slices.Delete(l.waiting, next, next+1)
		l.underWay++
		l.to[r.to]++
		close(r.granted)
	}
}
