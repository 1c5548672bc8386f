package link

import (
	"github.com/ringnet/ringnet/internal/fabric"
)

// push adds a work request to the batch, for the caller to fill in. Called with mu held.
func (l *Link) push(signaled bool) *fabric.WorkRequest {
	q := &l.send
	q.batch = q.batch[:len(q.batch)+1]
	wr := &q.batch[len(q.batch)-1]
	*wr = fabric.WorkRequest{ID: q.slots.Post(), Signaled: signaled}
	if signaled {
		q.slots.Signal()
		q.unsignaledBytes = 0
		l.stats.Signaled++
	}
	l.stats.WorkRequests++
	return wr
}

// post hands the batch to the device. It releases mu meanwhile, for a device that copies may take long;
// but not for a little, which it takes sooner than mu could be released and taken again. It returns whether
// there may be more to post: what has come meanwhile, or had no place in the batch. Called with mu held.
func (l *Link) post() (more bool) {
	q := &l.send
	if q.batchBytes <= copyLocked {
		more = len(q.batch) >= maxBatch-controlBatch
		l.submitted(l.ep.PostSend(q.batch))
		return more
	}
	q.posting = true
	l.mu.Unlock()
	err := l.ep.PostSend(q.batch)
	if l.ep.RingDue() {
		l.ep.Ring()
	}
	l.lock()
	q.posting = false
	l.submitted(err)
	return true
}

// submitted handles the result of PostSend. Called with mu held.
func (l *Link) submitted(err error) {
	for i := range l.send.batch {
		l.send.batch[i].Data, l.send.batch[i].Rest = nil, nil // they may be a caller's
	}
	l.send.batch, l.send.batchBytes = l.send.batch[:0], 0
	if err != nil {
		l.fail(lost(err))
	}
}

// sendCompleted frees the slots and the memory that the work request, and those before it,
// took. Called with mu held.
func (l *Link) sendCompleted(id uint64) {
	q := &l.send
	q.slots.Complete(id)
	q.window.complete(&q.slots)
	l.freeStaging()
	for i := 0; i < len(q.awaitingEnds); {
		if s := q.awaitingEnds[i]; s.delivered() {
			q.awaitingEnds[i] = q.awaitingEnds[len(q.awaitingEnds)-1]
			q.awaitingEnds = q.awaitingEnds[:len(q.awaitingEnds)-1]
			s.touch()
			continue
		}
		i++
	}
}
