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
	others    uint64 // outstanding that have no number
}

// NewSlots returns the ledger of a send queue with room for depth work requests. The last
// reserved slots are for control messages: the caller asks [Slots.MaySend] before a data message
// only, and has no more than reserved control messages outstanding.
func NewSlots(depth, reserved int) Slots {
	return Slots{depth: uint64(depth), reserved: uint64(reserved)}
}

// Depth returns the number of work requests that may be outstanding.
func (q *Slots) Depth() int { return int(q.depth) }

// used is how many slots are taken.
func (q *Slots) used() uint64 { return q.posted - q.completed + q.others }

// Outstanding returns the number of work requests that are not known to have completed.
func (q *Slots) Outstanding() int { return int(q.used()) }

// MaySend reports whether a data message may take a slot.
func (q *Slots) MaySend() bool { return q.depth-q.used() > q.reserved }

// Post takes a slot and returns the number of the work request, from 0. It panics if no slot is
// free.
func (q *Slots) Post() uint64 {
	if q.used() == q.depth {
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

// Restart records that another queue has taken the place of this one: the work requests before next have
// completed, and those from next on have yet to be posted there, by PostAgain, or not at all. others is how many signaled
// work requests without a number are outstanding there.
func (q *Slots) Restart(next uint64, others int) {
	q.posted, q.completed, q.signaled, q.others = next, next, next, uint64(others)
}

// CompleteOther frees the slot of a work request that has no number.
func (q *Slots) CompleteOther() {
	if q.others == 0 {
		panic("credit: completion of a work request that is not outstanding")
	}
	q.others--
}

// PostAgain takes a slot for a work request with the number that it had on the queue before, and reports whether there
// is one for it. If numbers are left out before it, which are not posted again, all that is outstanding has to
// complete first: they take no slots. control says that it may take a slot of the reserved.
func (q *Slots) PostAgain(n uint64, control bool) bool {
	switch {
	case n == q.posted:
	case q.completed == q.posted:
		q.completed, q.posted = n, n
	default:
		return false
	}
	depth := q.depth
	if !control {
		depth -= q.reserved
	}
	if n-q.completed+q.others >= depth {
		return false
	}
	q.posted = n + 1
	return true
}

// Complete frees the slots of work request n and of all before it. It panics if n is not
// outstanding.
func (q *Slots) Complete(n uint64) {
	if n < q.completed || n >= q.posted {
		panic(fmt.Sprintf("credit: completion of work request %d, outside %d to %d", n, q.completed, q.posted))
	}
	q.completed = n + 1
}
