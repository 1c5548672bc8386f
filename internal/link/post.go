package link

import (
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// push adds a work request to the batch, for the caller to fill in.
func (l *Link) push(signaled bool) *fabric.WorkRequest {
	q := &l.send
	q.batch = q.batch[:len(q.batch)+1]
	wr := &q.batch[len(q.batch)-1]
	*wr = fabric.WorkRequest{ID: q.slots.Post(), Signaled: signaled}
	if signaled {
		q.slots.Signal()
		q.quiet = 0
		l.stats.Signaled++
	}
	l.stats.WorkRequests++
	return wr
}

// post hands the batch to the device. It releases mu meanwhile, for that may
// take long: a device that copies, or that is software, does then what it has to
// do. Letting go would take longer than a little takes a device that is not slow.
func (l *Link) post() (released bool) {
	q := &l.send
	timed := q.timed < timedPosts
	if !timed && q.bytes <= copyLocked && !q.slow() {
		l.submitted(l.ep.PostSend(q.batch))
		return false
	}
	var start time.Time
	if timed {
		start = time.Now()
	}
	q.posting = true
	l.mu.Unlock()
	err := l.ep.PostSend(q.batch)
	var took time.Duration
	if timed {
		took = time.Since(start)
	}
	l.mu.Lock()
	q.posting = false
	if timed {
		q.timed++
		q.postTime = min(q.postTime, took)
	}
	l.submitted(err)
	return true
}

// submitted ends what PostSend has begun. Called with mu held.
func (l *Link) submitted(err error) {
	l.send.batch, l.send.bytes = l.send.batch[:0], 0
	if err != nil {
		l.fail(lost(err))
	}
	if l.cause != nil || l.receive.flushing {
		l.moveToError()
		l.settle()
		l.ep.Wake() // the engine, which may have waited for this alone
	}
}

// sendCompleted takes back what the work request, and those before it, held.
func (l *Link) sendCompleted(id uint64) {
	q := &l.send
	q.slots.Complete(id)
	q.bulk.complete(&q.slots)
	l.freeStaging()
	for i := 0; i < len(q.ending); {
		if s := q.ending[i]; s.delivered() {
			q.ending[i] = q.ending[len(q.ending)-1]
			q.ending = q.ending[:len(q.ending)-1]
			s.touch()
			continue
		}
		i++
	}
}
