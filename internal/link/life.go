package link

import (
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// stage is how far a link is in its life.
//
//	up        streams come and go           → draining or ending, on a cause
//	draining  the queue pair is in ERR      → seeking, when all receives are back;
//	                                          ended then, if no stream is left to go on for;
//	                                          ending, on a cause that the link does not outlive
//	ending    the same, and the link goes   → ended, when all receives are back;
//	                                          closed, if idleTick does not wait for them
//	seeking   its streams wait              → up, over another queue pair;
//	                                          ended, if there is none to be had, or on a cause
//	ended     nothing more will arrive      → closed, when nothing of it is owned
//	closed    the engine destroys the endpoint
//
// Those before seeking have a queue pair, from which messages may arrive.
type stage uint8

const (
	up stage = iota
	draining
	ending
	seeking
	ended
	closed
)

// testHookEnter is for tests, which hold links to the table above. Called with mu held.
var testHookEnter = func(before, after stage) {}

// final reports whether the link will not be up again.
func (s stage) final() bool { return s == ending || s >= ended }

// pathless reports whether the link has lost its queue pair, and may have another yet.
func (s stage) pathless() bool { return s == draining || s == seeking }

// life is how far a link is, why, and who is to be told. Guarded by Link.mu, but for
// lacksPath and gone.
type life struct {
	stage     stage
	cause     error         // why it is not up; nil if it is
	lacksPath atomic.Bool   // stage.pathless, for a Pool to read without mu
	gone      chan struct{} // closed when stage becomes final

	// See OnEnd, OnDown and OnMove.
	over  []func()
	down  []func(cause error)
	moved []func(i Info, took time.Duration, cause error)
}

// enter has the link be in another stage. Called with mu held.
func (f *life) enter(s stage) {
	before := f.stage
	testHookEnter(before, s)
	f.stage = s
	f.lacksPath.Store(s.pathless())
	if s.final() && !before.final() {
		close(f.gone)
		for _, over := range f.over {
			go over()
		}
		f.over = nil
	}
}

// queuePair is what a link knows of the queue pair that it has. It begins anew with
// each: see resume. Guarded by Link.mu.
type queuePair struct {
	state             qpState
	posted            int  // receives posted and not completed
	spent             int  // receives that data has completed, to be posted again
	noMoreCompletions bool // what is not there when the queue has been polled empty will never come back
	peerGone          bool // Wait has returned an error: there is no answer to wait for
}

// qpState is how far a queue pair is in its life.
//
//	qpReady   sends and receives             → qpFailed, on a cause, or when a work request has been
//	                                           flushed, whose cause comes later
//	qpFailed  Disconnect waits for a post    → qpError, at once or when the post has ended
//	qpError   Disconnect has been called: what is posted is flushed
type qpState uint8

const (
	qpReady qpState = iota
	qpFailed
	qpError
)

// fail moves the queue pair to ERR for the given reason. The link ends, or seeks another
// queue pair if it may outlive that (see survivable). The first reason stays, unless the
// second is one that the link cannot outlive. What has arrived can still be read. Called
// with mu held.
func (l *Link) fail(cause error) {
	survivable := l.survivable(cause)
	if l.cause != nil && (survivable || l.stage.final()) {
		return
	}
	l.cause = cause
	if l.stage == seeking {
		l.end()
		return
	}
	if l.stage == up {
		l.path.lostAt = l.now()
	}
	next := ending
	if survivable && !l.stage.final() {
		next = draining
	}
	if next != l.stage { // it may have failed before, for a reason that was none
		l.enter(next)
	}
	l.moveToError()
	l.limitDrain()
	l.watch.called = true // the engine polls for the flushed receives
}

// Abort ends the link and all streams on it. Their owners still have to close them.
func (l *Link) Abort() {
	l.lock()
	defer l.unlock()
	l.fail(errGivenUp)
	l.path.settled.Broadcast()
}

// Gone is closed when the link has ended, or nothing more can be sent on it.
func (l *Link) Gone() <-chan struct{} { return l.gone }

// drainTime is how long a link waits for a queue pair in ERR to complete the receives
// posted to it. A device that has failed as a whole reports success for "to ERR" and
// flushes nothing (mlx5), and a completion queue that has failed delivers nothing.
const drainTime = 5 * time.Second

// limitDrain sets the alarm that ends the wait for the receives of a queue pair in ERR.
// Called with mu held.
func (l *Link) limitDrain() {
	if !l.alarms.isSet(drainAlarm) {
		l.alarms.set(drainAlarm, l.now().Add(drainTime))
	}
}

// drainTick ends the wait for receives of a queue pair that have not completed, and for an
// error that gives the reason why it failed. Called with mu held.
func (l *Link) drainTick() {
	l.fail(lost(fabric.ErrQueuePair))
	l.qp.noMoreCompletions = true
	l.pollCompletions()
}

// moveToError moves the queue pair to ERR: if a post is under way, advance does so behind it. Called
// with mu held.
func (l *Link) moveToError() {
	if l.qp.state == qpError {
		return
	}
	if l.qp.state = qpFailed; l.send.posting {
		return
	}
	l.qp.state = qpError
	if err := l.ep.Disconnect(); err != nil {
		l.fail(lost(err))
		l.qp.noMoreCompletions = true // a queue pair that cannot go to ERR flushes nothing
	}
}

// usable reports whether the link carries what is on it.
func (l *Link) usable() bool {
	l.lock()
	defer l.unlock()
	return l.stage == up
}

// OnEnd has f called once, in a goroutine of its own, when no stream can begin on the link
// any more.
func (l *Link) OnEnd(f func()) {
	l.lock()
	defer l.unlock()
	if l.stage.final() {
		go f()
	} else {
		l.over = append(l.over, f)
	}
}

// advance moves a queue pair that has failed to ERR behind a post, ends an idle link when both sides have
// sent GOAWAY, and ends the draining of a queue pair when all of its receives have completed. It returns
// whether the link is at another stage. Called with mu held.
func (l *Link) advance() bool {
	before := l.stage
	if before == up && l.qp.state == qpReady && !l.leaving.received {
		return false
	}
	if l.qp.state == qpFailed && l.stage < ended {
		l.moveToError()
	}
	if g := &l.leaving; l.stage == up && g.received && l.streams.live.Load() == 0 && g.delivered(&l.send.slots) {
		l.fail(errGivenUp)
	}
	if (l.stage == draining || l.stage == ending) && l.qp.posted == 0 && !l.send.posting {
		l.alarms.clear(drainAlarm)
		if l.stage == draining && l.survivable(l.cause) {
			l.seek()
		} else {
			l.end()
		}
	}
	return l.stage != before
}

// end ends the link, wakes all calls on it, and hands buffers back. Called with mu held.
func (l *Link) end() {
	l.enter(ended)
	l.path.end()
	l.path.settled.Broadcast()
	l.sayDown()
	l.handBack()
	for _, s := range l.streams.byNumber {
		if s != nil {
			s.wake()
		}
	}
	for _, s := range l.send.awaitingEnds { // some are in the table no more
		s.wake()
	}
}

// OnDown has f called once, in a goroutine of its own, when the link has ended: with the
// reason, or with nil if no stream was on it.
func (l *Link) OnDown(f func(cause error)) {
	l.lock()
	defer l.unlock()
	l.down = append(l.down, f)
	if l.stage >= ended {
		l.sayDown()
	}
}

// sayDown calls what OnDown was given, unless it has been called. Called with mu held.
func (l *Link) sayDown() {
	cause := l.cause
	if cause == errGivenUp || disconnected(cause) && l.leaving.begun() && l.streams.live.Load() == 0 {
		cause = nil
	}
	for _, down := range l.down {
		go down(cause)
	}
	l.down = nil
}

// OnMove has f called, in a goroutine of its own, whenever the link goes on over another
// queue pair: with what it is then, how long it was without one, and why it had lost the
// one before.
func (l *Link) OnMove(f func(i Info, took time.Duration, cause error)) {
	l.lock()
	defer l.unlock()
	l.moved = append(l.moved, f)
}

// failed is why the link has ended, or nil if it has not. Called with mu held.
func (l *Link) failed() error {
	if l.stage < ended {
		return nil
	}
	return l.cause
}
