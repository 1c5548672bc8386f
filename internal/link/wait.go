package link

import (
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/pollers"
)

// call is a call that may have to wait.
type call struct {
	parked bool
	signal chan struct{} // has room for one; sent to when a parked call is ready; made when one parks
	waits  atomic.Uint64 // times that one has waited
}

// Index of Stream.calls.
const (
	readCall = iota
	writeCall
	closeCall
	openCall
	calls
)

// ready reports whether there is nothing more for a call to wait for. Called with
// mu held.
var ready = [calls]func(s *Stream) bool{
	readCall:  readReady,
	writeCall: writeReady,
	closeCall: func(s *Stream) bool { return s.delivered() || s.link.stage >= ended },
	openCall:  func(s *Stream) bool { return !s.ledger.AwaitsAnswer() || s.link.stage >= ended },
}

func (s *Stream) isReady(which int) bool {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return ready[which](s)
}

// wake wakes the parked calls that have become ready. Called with mu held, after
// a change.
func (s *Stream) wake() {
	for i := range s.calls {
		if w := &s.calls[i]; w.parked && ready[i](s) {
			w.parked = false
			s.link.watch.parked--
			s.served()
			w.signal <- struct{}{}
		}
	}
}

// A call that polls looks at the clock, and lets other goroutines run, once in
// so many polls: each costs more than a poll, and runtime.Gosched wakes another
// thread to look for work.
const (
	pollsPerClock = 16
	pollsPerYield = 64
)

// watch is who notices the next completion. Invariant while the link has a queue pair:
// the completion queue is armed, so that the engine wakes; or a call polls it; or the timer
// is pending, which arms it within a millisecond if no call polls. More than one may hold.
// Guarded by Link.mu.
type watch struct {
	armed   bool
	polling bool // a call polls over and over
	pending bool // timer will fire
	timer   *time.Timer
	polls   uint64 // ever made
	seen    uint64 // polls, when timer was last set
	more    bool   // the last poll left completions behind
	wary    int    // how often yet rewatch arms the queue although it need not
	opened  bool   // the peer has begun a stream since the engine woke: perhaps more come
	parked  int    // calls that wait and are not ready

	budget int     // polls without a completion after which a wait parks
	waits  uint64  // that polled
	serves uint64  // calls that have become ready
	crowd  float64 // streams that take turns, lately
}

// watchWithin is how long the completion queue may stay unwatched after a call that polled
// has returned to its application. So the engine is not woken between the calls of a
// ping-pong.
const watchWithin = time.Millisecond

// waryFor is how often the queue is armed at once after a message has lain unnoticed until
// the timer fired: the peer begins streams one after the other, say, and no call reads.
const waryFor = 16

// watchNow makes sure that the next completion is noticed at once. It polls after it has
// armed the queue, for what has completed before gives no event. Called with mu held, which
// it may release to send.
func (l *Link) watchNow() {
	w := &l.watch
	if !w.more && !w.armed && !w.polling && l.stage < seeking {
		if err := l.ep.Arm(); err != nil {
			l.fail(lost(err))
			return
		}
		w.armed = true
		l.pollAndSend()
	}
	if w.more {
		w.more = false
		l.callEngine()
	}
}

// watchLater makes sure that the next completion is noticed within watchWithin or twice
// that. Called with mu held.
func (l *Link) watchLater() {
	w := &l.watch
	if w.armed || w.polling || w.pending || l.stage >= seeking {
		return
	}
	w.pending = true
	w.seen = w.polls
	w.timer.Reset(watchWithin)
}

// watchTick arms the completion queue unless it has been polled since the last tick.
func (l *Link) watchTick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch.pending = false
	if l.watch.polls != l.watch.seen {
		l.watchLater()
		return
	}
	before := l.receive.messages
	l.watchNow()
	if l.receive.messages != before {
		l.watch.wary = waryFor
	}
}

// rewatch is called by each call that stops polling the completion queue, and by the
// engine. Calls that are parked, and what waits to be sent, depend on the next completion,
// so the queue is armed for them. Otherwise most likely a call polls again soon: if the
// queue were armed for that, each message of a stream whose reader always finds some would
// wake the engine. Called with mu held, which it may release to send.
func (l *Link) rewatch() {
	wary := l.watch.wary > 0
	if wary {
		l.watch.wary--
	}
	if wary || l.watch.parked > 0 || l.send.withData.len() > 0 || l.send.withRecords.len() > 0 || len(l.send.awaitingEnds) > 0 || !l.polls() {
		l.watchNow()
	} else {
		l.watchLater()
	}
}

// polls reports whether calls poll before they park.
func (l *Link) polls() bool { return l.limits.Spin > 0 && l.cfg.BusyPoll >= 0 }

// wait returns nil when a call is ready, or os.ErrDeadlineExceeded. It polls for a while,
// unless another call does, and then parks.
func (s *Stream) wait(which int, d *deadline.Deadline) error {
	l := s.link
	w := &s.calls[which]
	w.waits.Add(1)
	if l.polls() && s.busyPoll(which, d) {
		return nil
	}
	for {
		l.mu.Lock()
		if !ready[which](s) {
			if w.signal == nil {
				w.signal = make(chan struct{}, 1)
			}
			w.parked = true // from here on wake wakes it, and the queue is watched for it
			l.watch.parked++
			if l.watch.armed {
				l.pollAndSend()
			}
			l.watchNow()
			if ready[which](s) {
				s.unpark(w)
			}
		}
		if !w.parked && len(w.signal) == 0 {
			l.rewatch()
			l.mu.Unlock()
			return nil
		}
		l.mu.Unlock()
		select {
		case <-w.signal:
		case <-d.Done():
			l.mu.Lock()
			defer l.mu.Unlock()
			s.unpark(w)
			return os.ErrDeadlineExceeded
		}
	}
}

// unpark ends that a call is parked, and takes the signal if it has been sent. Called with
// mu held.
func (s *Stream) unpark(w *call) {
	if !w.parked {
		<-w.signal
		return
	}
	w.parked = false
	s.link.watch.parked--
}

// busyPoll polls until the call is ready, and returns true, or until polling has found
// nothing for long enough. It wakes the calls of other streams that it makes ready.
func (s *Stream) busyPoll(which int, d *deadline.Deadline) bool {
	l := s.link
	l.mu.Lock()
	if l.watch.polling || !pollers.Begin() {
		l.mu.Unlock()
		return false
	}
	defer pollers.End()
	l.watch.polling = true
	most := l.pollBudget()
	var until time.Time
	if l.cfg.BusyPoll > 0 {
		until = time.Now().Add(l.cfg.BusyPoll)
	}
	done := ready[which](s)
	found := done
	for polls, misses := 1, 0; !done && !d.Expired(); polls++ {
		crowded := l.watch.crowd > crowded
		l.mu.Unlock()
		if polls%pollsPerYield == 0 {
			runtime.Gosched()
			if crowded {
				yieldThread()
			}
		}
		l.mu.Lock()
		misses++
		if l.tryPoll() {
			misses, found = 0, true
		}
		done = ready[which](s)
		if l.cfg.BusyPoll > 0 {
			if polls%pollsPerClock == 0 && time.Now().After(until) {
				break
			}
		} else if misses >= most {
			break
		}
	}
	l.watch.polling = false
	l.pollResult(found)
	if done {
		s.served()
		l.rewatch()
	}
	l.mu.Unlock()
	return done
}

// A link is crowded if more streams than this take turns. Its calls then wait longer for a
// processor than for their peers: while one thread polls, those that would serve the
// others wait, here and in the other process.
const crowded = 8

// served updates watch.crowd when a call of the stream has become ready. The number of
// streams that take turns is how many calls of other streams become ready between two of
// the same. Streams that only wait do not count. Called with mu held.
func (s *Stream) served() {
	w := &s.link.watch
	turns := min(w.serves-s.servedAt, 8*crowded)
	s.servedAt = w.serves
	w.serves++
	w.crowd += (float64(turns) - w.crowd) / 16
}

// pollBudget is how often the next wait polls before it parks: as often as the fabric
// advises (fabric.Limits.Spin) where polling has found something lately, and hardly at all
// where it has not. Each 16th wait polls for the full time, to see whether that has
// changed. Called with mu held.
func (l *Link) pollBudget() int {
	l.watch.waits++
	if l.watch.waits%16 == 0 {
		return l.limits.Spin
	}
	return l.watch.budget
}

// pollResult adapts the budget to how polling went. Called with mu held.
func (l *Link) pollResult(found bool) {
	if found {
		l.watch.budget = l.limits.Spin
		return
	}
	l.watch.budget = max(l.watch.budget/2, l.limits.Spin/64, 1)
}
