package link

import (
	"time"

	"github.com/ringnet/ringnet/internal/machine"
)

// Whatever changes a link does so between lock and unlock, by telling its machine, and carryOut alone, which unlock calls,
// and who holds the watch before it sleeps, does what that wants then: it posts, wakes the calls that have become ready, moves the queue pair to ERR or seeks another, gets
// memory, sets the timer, and sees that somebody watches for the next completion. So no change has to know what
// depends on it.

// lock takes the link's lock, mu.
func (l *Link) lock() {
	l.mu.Lock()
	l.m.Begin()
}

// unlock carries out what the machine wants, gives up mu, and wakes the peer, who decides how long that takes.
func (l *Link) unlock() {
	l.carryOut()
	ep, due := l.ep, l.ep.RingDue()
	l.mu.Unlock()
	if due {
		ep.Ring()
	}
}

// maxRounds is how many batches a call posts before it leaves the rest, most of it other
// streams', to who has the watch.
const maxRounds = 4

// carryOut does what the machine wants, until it wants nothing. It may release mu while the device takes work
// requests; what is wanted meanwhile it does, too.
func (l *Link) carryOut() {
	if !l.started() {
		return
	}
	for round := 0; ; {
		if len(l.m.Touched) > 0 {
			l.wakeTouched()
		}
		if l.m.More {
			l.provide()
		}
		if l.m.TakeDisconnect() {
			l.m.Disconnected(l.ep.Disconnect())
		}
		batch := l.m.HasBatch()
		if l.m.Receives > 0 {
			l.postReceives()
		}
		if batch {
			if round++; round > maxRounds {
				l.m.Called = true
				break
			}
			if more := l.post(); more {
				continue
			}
		}
		if !l.m.Advance() && len(l.m.Touched) == 0 && !l.m.More {
			break
		}
	}
	l.seeToWatch()
	if l.m.AlarmsChanged() {
		l.setTimer()
	}
}

// provide does what the machine wants More.
func (l *Link) provide() {
	m := l.m
	m.More = false
	for _, s := range take(&m.Offered) {
		l.offered(s)
	}
	for _, s := range take(&m.Named) {
		l.getInLine(&l.memory.line.beginning, l.reaching(s))
	}
	for _, s := range take(&m.Growing) {
		l.getInLine(&l.memory.line.growing, l.growing(s))
	}
	if m.StagingFull {
		m.StagingFull = false
		l.getInLine(&l.memory.line.growing, l.growingStaging())
	}
	for _, b := range take(&m.Returned) {
		b.Owner.(*Buffer).returned()
	}
	for _, s := range take(&m.Forgotten) {
		l.forget(s)
	}
	for ; m.Answered > 0; m.Answered-- {
		<-l.opens
	}
	l.report()
}

// take takes all out of a list.
func take[T any](list *[]T) []T {
	all := *list
	*list = nil
	return all
}

// postReceives posts the receives that are due.
func (l *Link) postReceives() {
	if n := l.m.TakeReceives(); n > 0 {
		if err := l.ep.PostRecv(n); err != nil {
			l.m.NotReceiving(n, err)
		}
	}
}

// copyLocked is how many bytes are copied without releasing the link's lock: to release it
// and take it again would take longer.
const copyLocked = 1 << 10

// post hands the batch to the device. It releases mu meanwhile, for a device that copies may take long;
// but not for a little, which it takes sooner than mu could be released and taken again. It returns whether
// there may be more to post: what has come meanwhile, or had no place in the batch.
func (l *Link) post() (more bool) {
	batch, bytes := l.m.Batch()
	if bytes <= copyLocked {
		return l.m.Posted(l.ep.PostSend(batch))
	}
	l.m.Post()
	l.mu.Unlock()
	err := l.ep.PostSend(batch)
	if l.ep.RingDue() {
		l.ep.Ring()
	}
	l.lock()
	l.m.Posted(err)
	return true
}

// wakeTouched wakes the calls that are ready on the streams that have been touched.
func (l *Link) wakeTouched() {
	touched := l.m.Touched
	for i, s := range touched {
		touched[i] = nil
		s.Untouched()
		if s, ok := s.Owner.(*Stream); ok {
			s.wake()
		}
	}
	l.m.Touched = touched[:0]
}

// maxPolls is how many batches of completions are taken at a time, so that no
// peer can have the lock held by sending without end.
const maxPolls = 4

// pollCompletions takes what has completed, up to a bound. It returns whether anything had
// completed.
func (l *Link) pollCompletions() bool {
	if l.m.Stage() >= machine.Seeking {
		return false
	}
	l.watch.polls++
	for polls := 1; ; polls++ {
		n, err := l.ep.Poll(l.completions[:])
		if err != nil {
			l.m.NotPolled(err)
		} else if n == 0 && polls == 1 && !l.m.NoMoreCompletions() {
			return false
		}
		l.m.Completed(l.completions[:n])
		if n < len(l.completions) {
			l.m.Emptied()
			break
		}
		if polls == maxPolls {
			l.m.Called = true
			break
		}
	}
	return true
}

// tick is the link's timer.
func (l *Link) tick() {
	l.lock()
	defer l.unlock()
	l.timerAt = time.Time{}
	l.pollCompletions() // the peer may have answered, and no call has polled
	l.m.Tick()
	l.pollCompletions() // before a queue pair is given up that gives nothing back
	if l.m.Trim && !l.memory.trimming {
		l.m.Trim, l.memory.trimming = false, true
		l.trim()
		l.memory.trimming = false
		if l.m.Rings().HasEmpty() { // the link has lost its queue pair meanwhile
			l.m.ShrinkLater()
		}
	}
}

// setTimer sets the timer to the machine's next alarm, unless it fires before.
func (l *Link) setTimer() {
	if at := l.m.NextAlarm(); !at.IsZero() && (l.timerAt.IsZero() || at.Before(l.timerAt)) {
		l.timerAt = at
		l.timer.Reset(time.Until(at))
	}
}

// seeToWatch sees that somebody has the watch, now if something depends on the next completion, or within
// watchWithin or twice that; and that a holder which sleeps wakes up if there is something for it to do.
func (l *Link) seeToWatch() {
	w, m := &l.watch, l.m
	w.called, w.wanted, w.served = w.called || m.Called, w.wanted || m.Watched, w.served || m.Served
	m.Called, m.Watched, m.Served = false, false, false
	switch {
	case w.wanted || w.holder == nil && l.mustWatch():
		w.wanted = false
		l.watchNow()
	case w.holder == nil && !w.pending:
		l.watchLater()
	}
	if w.in != nil && !w.roused && (w.called || l.relieved()) {
		w.rouse()
	}
}
