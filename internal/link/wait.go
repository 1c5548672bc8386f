package link

import (
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
)

// call is a call that may have to wait. Guarded by Link.mu, but for waits.
type call struct {
	parked bool
	signal chan struct{} // has room for one; sent to when a parked call is ready; made when one parks
	waits  atomic.Uint64 // times that it has waited
}

// Index of Stream.calls.
const (
	readCall = iota
	writeCall
	closeCall
	openCall
	calls
	engineCall = calls // index of watch.spins
)

// ready reports whether there is nothing more for a call to wait for.
var ready = [calls]func(s *Stream) bool{
	readCall:  readReady,
	writeCall: func(s *Stream) bool { return s.m.WriteReady() },
	closeCall: func(s *Stream) bool { return s.m.CloseReady() },
	openCall:  func(s *Stream) bool { return s.m.OpenReady() },
}

func (s *Stream) isReady(which int) bool {
	s.link.lock()
	defer s.link.unlock()
	return ready[which](s)
}

// wake wakes the stream's calls that wait and have become ready.
func (s *Stream) wake() {
	w := &s.link.watch
	for i := range s.calls {
		switch c := &s.calls[i]; {
		case c.parked && ready[i](s):
			c.parked = false
			w.parked--
			w.served = true
			if !s.atWork {
				s.atWork = true
				w.atWork++
			}
			c.signal <- struct{}{}
		case c == w.holder && w.in != nil && !w.roused && ready[i](s):
			w.rouse()
		}
	}
}

// engine stands for the engine among the calls that may hold a watch.
var engine call

// watch is who notices the next completion. It has one holder at a time, who polls the
// completion queue, or arms it and sleeps until its event.
//
//   - A call that has to wait takes the watch if nobody has it. If others wait when it returns,
//     the engine gets the watch.
//   - The engine leaves the watch when it has served all calls that wait, or data or CREDIT has
//     come for which none waits: such a program polls when it reads or writes.
//   - While nobody has the watch no call waits: most likely one soon will, and takes it. If
//     none does within a millisecond the timer gives the watch to the engine.
//
// Whoever has the watch gives it to the engine when the link loses its queue pair.
// Guarded by Link.mu.
type watch struct {
	holder *call           // &engine if it is the engine; nil: nobody
	given  chan struct{}   // has room for one; sent to when the engine gets the watch
	in     fabric.Endpoint // in whose Wait the holder is, or about to be; nil: it is awake
	roused bool            // in has been woken since the holder has begun to wait
	wanted bool            // somebody is to have the watch now, whatever mustWatch says
	called bool            // the holder is to look at once for what it can take or send
	parked int             // calls that wait until the holder wakes them
	atWork int             // streams of which a call has been woken, and none waits again
	served bool            // one of them has become ready, or data or CREDIT has come, since the engine has looked

	engineFirst int // how often yet the engine takes the watch from a call although no call waits
	spins       [calls + 1]spin
	pending     bool // timer will fire
	timer       *time.Timer
	polls       uint64 // ever made
	seen        uint64 // polls, when timer was last set
}

// watchWithin is how long the completion queue may stay unwatched after a call has returned to
// its application. So the engine need not take the watch between the calls of a ping-pong.
const watchWithin = time.Millisecond

// engineFirstFor is how often the engine takes the watch at once after a message has lain unnoticed
// until the timer fired: the peer begins streams one after the other, say, and no call reads.
const engineFirstFor = 16

// rouse wakes the holder, which waits for an event.
func (w *watch) rouse() {
	w.roused = true
	w.in.Wake()
}

// watchNow sees that somebody has the watch: the engine, if nobody has it.
func (l *Link) watchNow() {
	w := &l.watch
	w.served, l.m.Served = false, false // or the engine might be about to leave it
	if w.holder != nil {
		return
	}
	w.holder = &engine
	select {
	case w.given <- struct{}{}:
	default: // it has not noticed the last time yet
	}
}

// watchLater sets the timer that gives the watch to the engine.
func (l *Link) watchLater() {
	w := &l.watch
	w.pending = true
	w.seen = w.polls
	w.timer.Reset(watchWithin)
}

// watchTick gives the watch to the engine if nobody has it, and nobody has polled since the
// last tick.
func (l *Link) watchTick() {
	l.lock()
	defer l.unlock()
	w := &l.watch
	w.pending = false
	switch {
	case w.holder != nil:
	case w.polls != w.seen: // unlock sets the timer again
	default:
		before := l.m.Messages()
		l.pollCompletions()
		if l.m.Messages() != before {
			w.engineFirst = engineFirstFor
		}
		w.wanted = true
	}
}

// giveUpWatch ends that the holder has the watch. Calls that wait are not left without, not even until unlock
// has posted.
func (l *Link) giveUpWatch() {
	w := &l.watch
	w.holder = nil
	if w.parked > 0 {
		l.watchNow()
	}
	if w.engineFirst > 0 {
		w.engineFirst--
		w.wanted = true
	}
}

// mustWatch reports whether something depends on the next completion: a call that waits, or
// what waits to be sent, or the link's life; or whether calls do not poll.
func (l *Link) mustWatch() bool {
	w := &l.watch
	return w.parked > 0 || w.called || l.needsEngine() || l.limits.Spin == 0 ||
		l.m.Waits()
}

// relieved reports whether the holder needs not wait any more: the engine, or a call because the engine is to
// have the watch.
func (l *Link) relieved() bool {
	if l.watch.holder == &engine {
		return l.satisfied(nil, engineCall, nil)
	}
	return l.needsEngine()
}

// needsEngine reports whether the engine is to have the watch.
func (l *Link) needsEngine() bool {
	return l.m.Stage() != machine.Up || len(l.path.lost) > 0 || l.m.IdleEnds()
}

// polls reports whether calls may poll before they sleep.
func (l *Link) polls() bool { return l.limits.Spin > 0 && l.cfg.BusyPoll >= 0 }

// wait returns nil when a call is ready, or os.ErrDeadlineExceeded. It releases mu
// meanwhile.
func (s *Stream) wait(which int, d *deadline.Deadline) error {
	l := s.link
	c := &s.calls[which]
	c.waits.Add(1)
	s.waitsAgain()
	for !ready[which](s) {
		switch {
		case d.Expired():
			return os.ErrDeadlineExceeded
		case l.watch.holder == nil && !l.needsEngine():
			s.lead(which, d)
		default:
			if l.cfg.BusyPoll > 0 {
				l.watch.called = true // the engine polls once a call waits
			}
			l.watchNow() // before unlock posts
			s.park(c, d)
		}
	}
	return nil
}

// waitsAgain notes that the program has done what a call of the stream was woken for.
func (s *Stream) waitsAgain() {
	if s.atWork {
		s.atWork = false
		s.link.watch.atWork--
	}
}

// park waits until the call is ready, or d has passed. It releases mu
// meanwhile.
func (s *Stream) park(c *call, d *deadline.Deadline) {
	l := s.link
	if c.signal == nil {
		c.signal = make(chan struct{}, 1)
	}
	c.parked = true
	l.watch.parked++
	l.unlock()
	select {
	case <-c.signal:
		l.lock()
		return
	case <-d.Done():
	}
	l.lock()
	if !c.parked {
		<-c.signal
		return
	}
	c.parked = false
	l.watch.parked--
}

// lead has the watch until the call is ready, or d has passed, or the engine is to have it.
// It releases mu meanwhile.
func (s *Stream) lead(which int, d *deadline.Deadline) {
	l := s.link
	c := &s.calls[which]
	l.watch.holder = c
	for !l.satisfied(s, which, d) && !l.needsEngine() {
		l.sleep(s, which, d)
	}
	l.giveUpWatch()
}

// satisfied reports whether a call need not wait any more, or, if s is nil, whether the engine has
// something to close.
func (l *Link) satisfied(s *Stream, which int, d *deadline.Deadline) bool {
	if s == nil {
		return l.m.Unneeded() || len(l.path.lost) > 0
	}
	return ready[which](s) || d.Expired()
}

// maxPasses is how often a holder that has been woken looks for more before it sleeps again.
// Without a bound a busy link would keep the scheduler from asking the network poller for
// what the rest of the program waits for.
const maxPasses = 8

// sleep waits for the next completion, takes what has completed, and looks again as long as it
// finds something. A call that has the watch says what it waits for; s is nil for the engine.
// It releases mu meanwhile.
func (l *Link) sleep(s *Stream, which int, d *deadline.Deadline) {
	w := &l.watch
	if l.poll(s, which, d) {
		return
	}
	w.called = false
	if l.m.Stage() < machine.Seeking {
		if err := l.ep.Arm(); err != nil {
			l.m.Fail(machine.Lost(err))
		}
	}
	l.pollCompletions() // what has completed before Arm gives no event
	l.carryOut()        // which may release mu
	switch {
	case w.called:
		l.letOthersRun()
		return
	case l.satisfied(s, which, d) || s != nil && l.needsEngine():
		return
	}
	if !l.await(d) {
		return
	}
	l.m.Woken()
	for pass := 1; ; pass++ {
		before := l.m.Activity()
		l.pollCompletions()
		if l.m.Activity() == before || pass == maxPasses || l.m.Stage() != machine.Up || l.satisfied(s, which, d) {
			return
		}
		l.letOthersRun() // those that have been woken
	}
}

// await waits for an event of the endpoint, or until d has passed if that is not nil, and takes
// note of a change of the connection. It returns false if the link has gone on over another queue
// pair meanwhile. Only who has the watch calls it. It releases mu meanwhile.
func (l *Link) await(d *deadline.Deadline) bool {
	w := &l.watch
	ep, moves := l.ep, l.m.Moves()
	w.in, w.roused = ep, false
	l.unlock()
	var event error
	if d == nil || !d.Notify(ep) {
		event = ep.Wait()
		if d != nil {
			d.Notify(nil) // else the deadline would keep an endpoint that the link has lost
		}
	}
	l.lock()
	w.in = nil
	if moves != l.m.Moves() {
		return false // what that has told is of the queue pair before
	}
	l.m.ConnectionChanged(event)
	return true
}

// letOthersRun lets other goroutines run. It releases mu meanwhile.
func (l *Link) letOthersRun() {
	l.unlock()
	runtime.Gosched()
	l.lock()
}
