package credit

import "fmt"

// Slots is the ledger of a send queue. Each work request takes a slot. Its own completion, or that
// of a later one, frees the slot. An answer of the peer does not, because the completions of two
// queues are not ordered.
type Slots struct {
	depth     uint64
	reserved  uint64 // for control messages
	posted    uint64
	completed uint64
	signaled  uint64 // one more than the number of the last signaled work request
}

// NewSlots returns the ledger of a send queue with room for depth work requests. The last
// reserved slots are for control messages: the caller asks [Slots.MaySend] before a data message
// only, and has no more than reserved control messages outstanding.
func NewSlots(depth, reserved int) Slots {
	return Slots{depth: uint64(depth), reserved: uint64(reserved)}
}

// Depth returns the number of work requests that may be outstanding.
func (q *Slots) Depth() int { return int(q.depth) }

// Outstanding returns the number of work requests that are not known to have completed.
func (q *Slots) Outstanding() int { return int(q.posted - q.completed) }

// MaySend reports whether a data message may take a slot.
func (q *Slots) MaySend() bool { return q.depth-(q.posted-q.completed) > q.reserved }

// Post takes a slot and returns the number of the work request, from 0. It panics if no slot is
// free.
func (q *Slots) Post() uint64 {
	if q.posted-q.completed == q.depth {
		panic(fmt.Sprintf("credit: more than %d work requests outstanding", q.depth))
	}
	q.posted++
	return q.posted - 1
}

// Next returns the number of the next work request, which Post will return.
func (q *Slots) Next() uint64 { return q.posted }

// Signal records that the work request posted last is signaled: its completion will come, and
// free its slot and those before it.
func (q *Slots) Signal() { q.signaled = q.posted }

// Completed reports whether the first n work requests are known to have completed.
func (q *Slots) Completed(n uint64) bool { return n <= q.completed }

// Unsignaled returns the number of work requests posted since the last signaled one.
func (q *Slots) Unsignaled() int { return int(q.posted - max(q.signaled, q.completed)) }

// Restart records that another queue has taken the place of this one, of which all work requests
// count as completed. posted and completed are the numbers of work requests that were posted to
// the new queue, all of them signaled, and that have completed there.
func (q *Slots) Restart(posted, completed int) {
	q.completed = q.posted + uint64(completed)
	q.posted += uint64(posted)
	q.signaled = q.posted
}

// Complete frees the slots of work request n and of all before it. It panics if n is not
// outstanding.
func (q *Slots) Complete(n uint64) {
	if n < q.completed || n >= q.posted {
		panic(fmt.Sprintf("credit: completion of work request %d, outside %d to %d", n, q.completed, q.posted))
	}
	q.completed = n + 1
}
