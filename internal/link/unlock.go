package link

import "time"

// Whatever changes a link does so between lock and unlock, and unlock alone carries out what that
// makes due: it posts what may be sent, wakes the calls that have become ready, ends the link or has it
// go on without its queue pair, and sees that somebody watches for the next completion. So no change has
// to know what depends on it.

// lock takes the link's lock, mu.
func (l *Link) lock() {
	l.mu.Lock()
	l.at = time.Time{}
}

// now is the time: the same for all between lock and unlock, where the clock is read once at most. Called with mu
// held.
func (l *Link) now() time.Time {
	if l.at.IsZero() {
		l.at = time.Now()
	}
	return l.at
}

// since is how long a time is past. Called with mu held.
func (l *Link) since(t time.Time) time.Duration { return l.now().Sub(t) }

// unlock carries out what is due, gives up mu, and wakes the peer, who decides how long that takes.
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

// carryOut does what is due. Called with mu held, which it may release while the device takes work
// requests; what becomes due meanwhile it does, too.
func (l *Link) carryOut() {
	if !l.started() {
		return
	}
	for round := 0; ; {
		l.wakeTouched()
		if l.hasBatch() {
			if round++; round > maxRounds {
				l.watch.called = true
				break
			}
			if more := l.post(); more {
				continue
			}
		}
		if !l.advance() {
			break
		}
	}
	l.seeToWatch()
	if l.alarms.changed {
		l.setTimer()
	}
}

// hasBatch puts what may be sent into the batch, and reports whether that is to be posted. Called with mu
// held.
func (l *Link) hasBatch() bool {
	if l.mayPost() {
		l.buildBatch()
	}
	return len(l.send.batch) > 0 && !l.send.posting
}

// seeToWatch sees that somebody has the watch, now if something depends on the next completion, or within
// watchWithin or twice that; and that a holder which sleeps wakes up if there is something for it to do. Called with
// mu held.
func (l *Link) seeToWatch() {
	w := &l.watch
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
