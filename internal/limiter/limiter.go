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
	queued   uint64 // ever
	to       map[K]*receiver
}

// receiver is a receiver to which requests are under way or wait.
type receiver struct {
	underWay int
	waiting  []*request // the oldest first
}

// request is a request that waits for its turn.
type request struct {
	number  uint64
	granted chan struct{} // closed when it has come
}

// New returns a Limiter of so many requests at once, and so many of them to one receiver, so that one
// that does not answer does not hold up the others.
func New[K comparable](most, mostToOne int) *Limiter[K] {
	return &Limiter[K]{most: most, mostToOne: mostToOne, to: make(map[K]*receiver)}
}

// Enter waits for the turn of a request to a receiver, and returns true; the caller calls Leave when
// the request is over. It returns false if ctx ends before. Of the receivers the one with the fewest
// requests under way comes first, and of requests to it the oldest.
func (l *Limiter[K]) Enter(ctx context.Context, to K) bool {
	l.mu.Lock()
	r := l.to[to]
	if r == nil {
		r = new(receiver)
		l.to[to] = r
	}
	l.queued++
	own := &request{l.queued, make(chan struct{})}
	r.waiting = append(r.waiting, own)
	l.grant()
	l.mu.Unlock()
	select {
	case <-own.granted:
		return true
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(r.waiting, own)
	if i < 0 {
		return true
	}
	r.waiting = slices.Delete(r.waiting, i, i+1)
	l.forget(to, r)
	return false
}

// Leave ends the turn of a request to a receiver.
func (l *Limiter[K]) Leave(to K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.to[to]
	l.underWay--
	r.underWay--
	l.forget(to, r)
	l.grant()
}

// forget forgets a receiver to which nothing is under way or waits. Called with mu held.
func (l *Limiter[K]) forget(to K, r *receiver) {
	if r.underWay == 0 && len(r.waiting) == 0 {
		delete(l.to, to)
	}
}

// UnderWay returns how many requests are under way, and how many of them to one receiver.
func (l *Limiter[K]) UnderWay(to K) (all, toOne int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.to[to]; r != nil {
		toOne = r.underWay
	}
	return l.underWay, toOne
}

// grant grants as many turns as may be under way. Called with mu held.
func (l *Limiter[K]) grant() {
	for l.underWay < l.most {
		var next *receiver
		for _, r := range l.to {
			if len(r.waiting) > 0 && r.underWay < l.mostToOne && (next == nil || r.before(next)) {
				next = r
			}
		}
		if next == nil {
			return
		}
		own := next.waiting[0]
		next.waiting = slices.Delete(next.waiting, 0, 1)
		l.underWay++
		next.underWay++
		close(own.granted)
	}
}

// before reports whether the next turn is one of r's rather than one of other's.
func (r *receiver) before(other *receiver) bool {
	if r.underWay != other.underWay {
		return r.underWay < other.underWay
	}
	return r.waiting[0].number < other.waiting[0].number
}
