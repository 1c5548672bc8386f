package link

import (
	"net"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// stage is how far a link is in its life.
type stage uint8

const (
	up stage = iota
	draining
	seeking // has no queue pair, and seeks another
	ended
	closed
)

// fail ends the link for the given reason, unless it has ended for another, or has it
// lose its queue pair, if that is all. What has arrived can still be read. Called with
// mu held.
func (l *Link) fail(cause error) {
	passing := l.passing(cause)
	if l.final || l.cause != nil && passing {
		return
	}
	l.cause, l.final = cause, !passing
	switch l.stage {
	case up:
		l.stage = draining
		l.path.search = search{lostAt: time.Now()}
	case seeking:
		l.end()
		return
	}
	l.lacksPath.Store(l.pathless())
	if l.final {
		l.announce()
	}
	l.moveToError()
	l.limitDrain()
	l.ep.Wake() // the engine waits for the flushed receives
}

// announce says that the link is about to end. Called with mu held.
func (l *Link) announce() {
	if l.announced {
		return
	}
	l.announced = true
	close(l.gone)
	if l.over != nil {
		go l.over()
	}
}

// Abort ends the link and all streams on it, which their owners still close.
func (l *Link) Abort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail(net.ErrClosed)
}

// Gone is closed when the link has ended, or nothing more can be sent on it.
func (l *Link) Gone() <-chan struct{} { return l.gone }

// drainTime bounds how long a queue pair in ERR may owe the receives posted to
// it. A device that has failed as a whole takes "to ERR" for done and flushes
// nothing (mlx5), and a completion queue that has failed delivers nothing.
const drainTime = 5 * time.Second

// limitDrain bounds the wait for what the queue pair, now in ERR, gives back.
// Called with mu held.
func (l *Link) limitDrain() {
	if l.drain == nil {
		l.drain = time.AfterFunc(drainTime, l.drainTick)
	}
}

// drainTick ends the wait for what has not come back, and for whoever was to
// say why the queue pair failed.
func (l *Link) drainTick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stage >= seeking || l.drain == nil { // all has come back meanwhile
		return
	}
	l.fail(lost(fabric.ErrQueuePair))
	l.abandoned = true
	l.pollAndSend()
}

// moveToError moves the queue pair to ERR, at once or when the device has taken
// what is being posted. Called with mu held.
func (l *Link) moveToError() {
	if l.cut || l.send.posting {
		return
	}
	l.cut = true
	if err := l.ep.Disconnect(); err != nil {
		l.fail(lost(err))
		l.receive.posted = 0 // a queue pair that cannot go to ERR flushes nothing
	}
}

// usable says whether the link carries what is on it.
func (l *Link) usable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stage == up
}

// OnEnd has f called when no stream can begin on the link any more.
func (l *Link) OnEnd(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = f
	if l.announced {
		go f()
	}
}

// settle notices the ends: that of an idle link, when both sides have said
// GOAWAY, and that of the queue pair, when nothing more will arrive. Called with
// mu held.
func (l *Link) settle() {
	if g := &l.leaving; l.stage == up && g.heard && g.sent > 0 && l.live.Load() == 0 && l.send.slots.Completed(g.sent) {
		l.fail(net.ErrClosed)
	}
	if l.stage != draining || l.receive.posted > 0 || l.send.posting {
		return
	}
	l.drain.Stop()
	l.drain = nil
	if !l.final && l.passing(l.cause) {
		l.seek()
		return
	}
	l.end()
}

// end has streams on the link told that it has ended. Called with mu held.
func (l *Link) end() {
	l.stage, l.final = ended, true
	l.lacksPath.Store(false)
	l.announce()
	l.path.end()
	l.path.settlePath()
	l.sayDown()
	l.handBack()
	for _, s := range l.streams {
		if s != nil {
			s.wake()
		}
	}
	for _, s := range l.send.ending { // some are in the table no more
		s.wake()
	}
	l.ep.Wake()
}

// OnDown has f called, in a goroutine of its own, when the link carries nothing any
// more: with why, or with nil if it had nothing to carry.
func (l *Link) OnDown(f func(cause error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = f
	if l.stage >= ended {
		l.sayDown()
	}
}

// sayDown is called with mu held.
func (l *Link) sayDown() {
	if l.down == nil {
		return
	}
	cause := l.cause
	if cause == net.ErrClosed || disconnected(cause) && l.leaving.begun() && l.live.Load() == 0 {
		cause = nil
	}
	go l.down(cause)
	l.down = nil
}

// OnMove has f called, in a goroutine of its own, whenever the link goes on over another
// queue pair: with what it is then, how long it was without one, and why it had lost the
// one before.
func (l *Link) OnMove(f func(i Info, took time.Duration, cause error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moved = f
}

// sayMoved is called with mu held.
func (l *Link) sayMoved(cause error) {
	if l.moved != nil {
		go l.moved(l.info(), time.Since(l.path.search.lostAt), cause)
	}
}

// failed says why streams on the link can do nothing any more, or nil. Called
// with mu held.
func (l *Link) failed() error {
	if l.stage < ended {
		return nil
	}
	return l.cause
}
