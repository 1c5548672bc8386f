package credit

import "fmt"

// Slots is the send queue's part of the ledger. A slot is taken by every work
// request and freed by its own completion or that of a later one: never because
// the peer has answered, for completions of two queues are not ordered.
type Slots struct {
	depth     uint64
	reserved  uint64 // for control messages
	posted    uint64
	completed uint64
	signaled  uint64 // one more than the number of the last signaled work request
}

// NewSlots returns the ledger of a send queue with room for depth work requests.
// Data leaves as many slots free as are reserved, for [Slots.MaySend] is its
// question alone: control messages, of which there must never be more outstanding,
// take a slot without asking.
func NewSlots(depth, reserved int) Slots {
	return Slots{depth: uint64(depth), reserved: uint64(reserved)}
}

// Depth is the number of work requests that may be outstanding.
func (q *Slots) Depth() int { return int(q.depth) }

// Outstanding is the number of work requests not known to have completed.
func (q *Slots) Outstanding() int { return int(q.posted - q.completed) }

// MaySend says whether a data message may take a slot.
func (q *Slots) MaySend() bool { return q.depth-(q.posted-q.completed) > q.reserved }

// Post takes a slot and returns the number of the work request, from 0.
func (q *Slots) Post() uint64 {
	if q.posted-q.completed == q.depth {
		panic(fmt.Sprintf("credit: more than %d work requests outstanding", q.depth))
	}
	q.posted++
	return q.posted - 1
}

// Next is the number of the work request that Post will return.
func (q *Slots) Next() uint64 { return q.posted }

// Signal records that the work request posted last is a signaled one: its
// completion will come and free its slot, with those before it.
func (q *Slots) Signal() { q.signaled = q.posted }

// Completed says whether the first n work requests are known to have completed.
func (q *Slots) Completed(n uint64) bool { return n <= q.completed }

// Unsignaled is the number of work requests posted since the last signaled one.
func (q *Slots) Unsignaled() int { return int(q.posted - max(q.signaled, q.completed)) }

// Restart takes all work requests for completed, whose queue is no more. In the one that
// takes its place so many have been posted since, all of them signaled, of which the
// first have completed.
func (q *Slots) Restart(posted, completed int) {
	q.completed = q.posted + uint64(completed)
	q.posted += uint64(posted)
	q.signaled = q.posted
}

// Complete frees the slots of work request n and of all before it.
func (q *Slots) Complete(n uint64) {
	if n < q.completed || n >= q.posted {
		panic(fmt.Sprintf("credit: completion of work request %d, outside %d to %d", n, q.completed, q.posted))
	}
	q.completed = n + 1
}
