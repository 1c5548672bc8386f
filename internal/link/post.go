package link

import (
	"time"

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

// post hands the batch to the device, and returns whether it has released mu meanwhile. It
// does, for a device that copies, or that is software, may take long; but not for a little
// that a fast device takes sooner than mu could be released and taken again. It does so, too,
// to wake a peer, who decides how long that takes. Called with mu held.
func (l *Link) post() (released bool) {
	q := &l.send
	little := q.batchBytes <= copyLocked
	timed := little && q.posts.toTime()
	locked := little && !timed && !q.posts.slow()
	var err error
	if locked {
		if err = l.ep.PostSend(q.batch); !l.ep.RingDue() {
			l.submitted(err)
			return false
		}
	}
	var start time.Time
	if timed {
		start = time.Now()
	}
	q.posting = true
	l.mu.Unlock()
	if !locked {
		err = l.ep.PostSend(q.batch)
	}
	var took time.Duration
	if timed {
		took = time.Since(start)
	}
	if l.ep.RingDue() {
		l.ep.Ring()
	}
	l.mu.Lock()
	q.posting = false
	if timed {
		q.posts.note(took)
	}
	l.submitted(err)
	return true
}

// submitted handles the result of PostSend, and what has waited for its end. Called with mu
// held.
func (l *Link) submitted(err error) {
	l.send.batch, l.send.batchBytes = l.send.batch[:0], 0
	if err != nil {
		l.fail(lost(err))
	}
	if l.qp.state != qpReady {
		l.moveToError()
		l.advance()
		l.callWatcher() // the engine may have waited for the end of the post
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
