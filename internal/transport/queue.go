package transport

// What waits for Accept.

import (
	"net"
	"os"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
)

// Queue is what waits for Accept, the oldest first. Those that add to it bound its length.
type Queue struct {
	deadline *deadline.Deadline

	mu      sync.Mutex // guards what follows, and is a leaf
	waiting []Accepted
	failed  error // why nothing more will come
	closed  bool
	over    bool          // nothing is added any more, and the addresses are free
	changed chan struct{} // closed when one of these has changed, and replaced
}

// Accepted is a connection that waits for Accept, or an error that Accept returns once.
type Accepted struct {
	Conn  Conn
	Err   error
	Taken func() // is called when it does not wait any more
}

// NewQueue returns an empty queue.
func NewQueue() *Queue {
	return &Queue{deadline: deadline.New(), changed: make(chan struct{})}
}

// wake has all calls of Next look again. Called with mu held.
func (q *Queue) wake() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// Push adds to the queue. It does not wait.
func (q *Queue) Push(a Accepted) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, a)
	q.wake()
}

// Fail makes Next return err when nothing waits any more.
func (q *Queue) Fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failed = err
	q.wake()
}

// Close has Next return nothing more. It returns whether the queue was open.
func (q *Queue) Close() bool {
	q.deadline.Set(time.Time{}) // ends its timer
	q.mu.Lock()
	defer q.mu.Unlock()
	wasOpen := !q.closed
	q.closed = true
	q.wake()
	return wasOpen
}

// Closed reports whether the queue is closed.
func (q *Queue) Closed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// SetDeadline makes Next fail with os.ErrDeadlineExceeded from t on. The zero time means no
// deadline.
func (q *Queue) SetDeadline(t time.Time) error {
	if q.Closed() {
		return net.ErrClosed
	}
	q.deadline.Set(t)
	return nil
}

// Next waits for what comes next, until the deadline. When the queue is closed, its error is
// net.ErrClosed, and by then Reset has been called: who listens again finds the address free.
func (q *Queue) Next() (Accepted, error) {
	for {
		a, changed, err := q.next()
		switch {
		case err != nil:
			return a, err
		case changed == nil:
			a.Taken()
			return a, nil
		}
		select {
		case <-changed:
		case <-q.deadline.Done():
		}
	}
}

// next removes what has waited longest, or returns what is closed when there may be something.
func (q *Queue) next() (a Accepted, changed <-chan struct{}, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.over:
		return a, nil, net.ErrClosed
	case q.closed:
		return a, q.changed, nil
	case q.deadline.Expired():
		return a, nil, os.ErrDeadlineExceeded
	case len(q.waiting) > 0:
		a, q.waiting[0] = q.waiting[0], Accepted{}
		q.waiting = q.waiting[1:]
		return a, nil, nil
	case q.failed != nil:
		return a, nil, q.failed
	}
	return a, q.changed, nil
}

// Reset resets the connections that wait, and ends all calls of Next. It is called after Close, when none is
// added any more.
func (q *Queue) Reset() {
	q.mu.Lock()
	waiting := q.waiting
	q.waiting, q.over = nil, true
	q.wake()
	q.mu.Unlock()
	for _, a := range waiting {
		if a.Conn != nil {
			Reset(a.Conn)
		}
	}
}
