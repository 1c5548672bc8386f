package machine

// queue is first in, first out.
type queue[T any] struct {
	items []T
	head  int
}

// Len is how many there are.
func (q *queue[T]) Len() int { return len(q.items) - q.head }

func (q *queue[T]) push(v T) {
	if q.head > 0 && len(q.items) == cap(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

// front is the first, of one at least.
func (q *queue[T]) front() T { return q.items[q.head] }

// Pop takes out the first, of one at least.
func (q *queue[T]) Pop() T {
	var none T
	v := q.items[q.head]
	q.items[q.head] = none
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return v
}
