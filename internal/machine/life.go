package machine

import (
	"errors"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Stage is how far a link is in its life.
//
//	Up        streams come and go           → Draining or Ending, on a cause
//	Draining  the queue pair is in ERR      → Seeking, when all receives are back;
//	                                          Ended then, if no stream is left to go on for;
//	                                          Ending, on a cause that the link does not outlive
//	Ending    the same, and the link goes   → Ended, when all receives are back;
//	                                          Closed, if an idle link does not wait for them
//	Seeking   its streams wait              → Up, over another queue pair;
//	                                          Ended, if there is none to be had, or on a cause
//	Ended     nothing more will arrive      → Closed, when nothing of it is owned
//	Closed    the endpoint is destroyed
//
// Those before Seeking have a queue pair, from which messages may arrive.
type Stage uint8

// The stages.
const (
	Up Stage = iota
	Draining
	Ending
	Seeking
	Ended
	Closed
)

// TestHookEnter is for tests, which hold links to the table above.
var TestHookEnter = func(before, after Stage) {}

// Final reports whether the link will not be up again.
func (s Stage) Final() bool { return s == Ending || s >= Ended }

// Pathless reports whether the link has lost its queue pair, and may have another yet.
func (s Stage) Pathless() bool { return s == Draining || s == Seeking }

// life is how far a link is, and why.
type life struct {
	stage Stage
	cause error // why it is not up; nil if it is
}

func (l *Link) enter(s Stage) {
	TestHookEnter(l.stage, s)
	l.stage, l.More = s, true
}

// Stage is how far the link is.
func (l *Link) Stage() Stage { return l.stage }

// Cause is why the link is not up; nil if it is.
func (l *Link) Cause() error { return l.cause }

// queuePair is what a link knows of the queue pair that it has. It begins anew with each: see Adopt.
type queuePair struct {
	state             qpState
	posted            int  // receives posted and not completed
	spent             int  // receives that data has completed, to be posted again
	noMoreCompletions bool // what is not there when the queue has been polled empty will never come back
	peerGone          bool // the connection is over: there is no answer to wait for
}

// qpState is how far a queue pair is in its life.
//
//	qpReady   sends and receives                 → qpFailed, on a cause, or when a work request has been
//	                                               flushed, whose cause comes later
//	qpFailed  it is to be disconnected           → qpError
//	qpError   it is: what is posted is flushed
type qpState uint8

const (
	qpReady qpState = iota
	qpFailed
	qpError
)

// Fail moves the queue pair to ERR for the given reason. The link ends, or seeks another
// queue pair if it may outlive that (see survivable). The first reason stays, unless the
// second is one that the link cannot outlive. What has arrived can still be read.
func (l *Link) Fail(cause error) {
	survivable := l.survivable(cause)
	if l.cause != nil && (survivable || l.stage.Final()) {
		return
	}
	l.cause = cause
	if l.stage == Seeking {
		l.end()
		return
	}
	if l.stage == Up {
		l.path.lostAt = l.now()
	}
	next := Ending
	if survivable && !l.stage.Final() {
		next = Draining
	}
	if next != l.stage { // it may have failed before, for a reason that was none
		l.enter(next)
	}
	l.moveToError()
	l.limitDrain()
	l.Called = true // for the flushed receives
}

// GiveUp ends the link and all streams on it. Their owners still have to close them.
func (l *Link) GiveUp() { l.Fail(errGivenUp) }

// survivable reports whether the link may outlive the loss of its queue pair for this reason:
// both sides would take it up again, neither has ended it, and it is of use yet.
func (l *Link) survivable(cause error) bool {
	if !l.path.resumes || l.receive.broken || l.done() {
		return false
	}
	var protocol *ProtocolError
	return cause != errGivenUp && !errors.As(cause, &protocol)
}

// done reports whether neither side has anything more to send: no stream is left, and this side's
// GOAWAY and all its records have been delivered, or the dialer's GOAWAY has come, which travels
// behind the messages that end the streams. Without either, a side that has no stream cannot know
// that its peer has none: the peer may still wait for a FINACK.
func (l *Link) done() bool {
	peerIsDone := l.goingAway.received && !l.active
	return l.streams.live == 0 && (peerIsDone || l.goingAway.delivered(&l.send.slots))
}

// DrainTime is how long a link waits for a queue pair in ERR to complete the receives
// posted to it. A device that has failed as a whole reports success for "to ERR" and
// flushes nothing (mlx5), and a completion queue that has failed delivers nothing.
const DrainTime = 5 * time.Second

// limitDrain sets the alarm that ends the wait for the receives of a queue pair in ERR.
func (l *Link) limitDrain() {
	if !l.alarms.isSet(drainAlarm) {
		l.alarms.set(drainAlarm, l.now().Add(DrainTime))
	}
}

// drainTick ends the wait for receives of a queue pair that have not completed, and for an
// error that gives the reason why it failed.
func (l *Link) drainTick() {
	l.Fail(Lost(fabric.ErrQueuePair))
	l.qp.noMoreCompletions = true
	l.Called = true
}

// moveToError has the queue pair disconnected, when no post is under way.
func (l *Link) moveToError() {
	if l.qp.state == qpReady {
		l.qp.state = qpFailed
	}
}

// TakeDisconnect reports whether the queue pair is to be moved to ERR, which its caller does, and then
// calls Disconnected.
func (l *Link) TakeDisconnect() bool {
	if l.qp.state != qpFailed || l.send.posting || l.stage >= Ended {
		return false
	}
	l.qp.state = qpError
	return true
}

// Disconnected notes the result of moving the queue pair to ERR.
func (l *Link) Disconnected(err error) {
	if err != nil {
		l.Fail(Lost(err))
		l.qp.noMoreCompletions = true // a queue pair that cannot go to ERR flushes nothing
	}
}

// Advance ends an idle link when both sides have sent GOAWAY, and ends the draining of a queue pair when all of its
// receives have completed. It reports whether the link is at another stage.
func (l *Link) Advance() bool {
	return (l.stage != Up || l.goingAway.received) && l.advance()
}

func (l *Link) advance() bool {
	before := l.stage
	if g := &l.goingAway; l.stage == Up && g.received && l.streams.live == 0 && g.delivered(&l.send.slots) {
		l.Fail(errGivenUp)
	}
	if (l.stage == Draining || l.stage == Ending) && l.qp.posted == 0 && !l.send.posting {
		l.alarms.clear(drainAlarm)
		if l.stage == Draining && l.survivable(l.cause) {
			l.enter(Seeking)
		} else {
			l.end()
		}
	}
	return l.stage != before
}

// end ends the link, has all calls on it look, and hands buffers back.
func (l *Link) end() {
	l.enter(Ended)
	l.handBack()
	for _, s := range l.streams.byNumber {
		if s != nil {
			s.touch()
		}
	}
	for _, s := range l.send.awaitingEnds { // some are in the table no more
		s.touch()
	}
}

// Close ends the link for good: its endpoint is about to be destroyed.
func (l *Link) Close() {
	if l.stage != Closed {
		l.enter(Closed)
	}
	for _, s := range l.streams.byNumber {
		if s != nil {
			s.forget()
		}
	}
}

// NeverStarted ends a link that has not been started.
func (l *Link) NeverStarted() { l.enter(Ending) }

// PeerDisconnected reports whether the link was lost because the peer has disconnected it, or would have.
func (l *Link) PeerDisconnected() bool { return disconnected(l.cause) }

// failed is why the link has ended, or nil if it has not.
func (l *Link) failed() error {
	if l.stage < Ended {
		return nil
	}
	return l.cause
}

// WhyDown is why the link has ended, or nil if that was as it should be.
func (l *Link) WhyDown() error {
	if l.cause == errGivenUp || disconnected(l.cause) && l.goingAway.begun() && l.streams.live == 0 {
		return nil
	}
	return l.cause
}

// Unneeded reports whether the link has ended, and nothing of it is owned any more.
func (l *Link) Unneeded() bool {
	return l.streams.owned == 0 && !l.send.posting && (l.stage == Ended && l.qp.peerGone || l.stage == Closed)
}

// IdleEnds reports whether nothing of the link is owned, so that it is about to leave.
func (l *Link) IdleEnds() bool { return l.streams.owned == 0 && l.cfg.idle() == 0 }

// PortDownTimeout is how long a port may be down before the peer is probed. Most
// are back by then. Soft-RoCE, which finds no route while its interface is down,
// fails at once whatever is sent meanwhile.
const PortDownTimeout = 2 * time.Second

// ConnectionChanged takes how the connection of the queue pair has changed: what fabric.Endpoint.Wait returns, or nil, which
// says nothing.
func (l *Link) ConnectionChanged(err error) {
	switch {
	case err == nil:
	case errors.Is(err, fabric.ErrPortDown) && l.path.otherCards:
		l.Fail(Lost(err))
	case errors.Is(err, fabric.ErrPortDown):
		l.alarms.set(portAlarm, l.now().Add(PortDownTimeout)) // it may come back; if not, the probe finds out
	case errors.Is(err, fabric.ErrAddressChanged):
		l.probe()
	case errors.Is(err, fabric.ErrPathLost):
		l.Fail(Lost(err))
	case errors.Is(err, fabric.ErrDeviceRemoved):
		if _, failed := l.cause.(*LostError); failed && l.stage < Seeking {
			l.cause = nil // the failure came of this: the device is gone
		}
		l.Fail(Lost(err))
		l.qp.noMoreCompletions = true
		l.qp.peerGone = true
	default:
		l.Fail(Lost(err))
		l.qp.peerGone = true
	}
}

// NotResumed ends a link that has sought another queue pair in vain.
func (l *Link) NotResumed(vain error) {
	if l.stage == Seeking { // it may have ended for another reason meanwhile
		l.cause = notResumed(l.cause, l.since(l.path.lostAt), vain)
		l.end()
	}
}
