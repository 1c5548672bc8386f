package link

import (
	"errors"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// run is the goroutine of a link, its engine. It has the watch while no call has it, takes note
// of what happens to the queue pair, and takes the link down when it has ended and its streams
// and buffers are closed.
func (l *Link) run() {
	l.lock()
	for !l.unneeded() {
		l.turn()
	}
	l.unlock()
	l.tearDown()
}

// turn waits until the engine has the watch, and then for one event of the endpoint. Called
// with mu held, which it releases meanwhile.
func (l *Link) turn() {
	w := &l.watch
	for w.holder != &w.engine {
		l.unlock()
		<-w.given
		l.lock()
	}
	l.closeLost()
	w.served = false
	l.sleep(nil, engineCall, nil)
	l.carryOut()
	if w.served && l.limits.Spin > 0 && !l.mustWatch() {
		l.leave() // the calls that have been woken take the watch
	}
}

// unneeded reports whether the link has ended, and nothing of it is owned any more. Called with
// mu held.
func (l *Link) unneeded() bool {
	return l.streams.owned == 0 && !l.send.posting && (l.stage == ended && l.qp.peerGone || l.stage == closed)
}

// closeLost closes the endpoints that the link has had before, in goroutines, for it takes
// a device whose cable is out seconds. Only the engine calls it, while it has the watch, so that
// nobody waits on any of them. Called with mu held.
func (l *Link) closeLost() {
	for _, ep := range l.path.lost {
		l.path.work.Go(func() { _ = ep.Close() }) // no call is left to return the error
	}
	l.path.lost = nil
}

// portDownTimeout is how long a port may be down before the peer is probed. Most
// are back by then. Soft-RoCE, which finds no route while its interface is down,
// fails at once whatever is sent meanwhile.
const portDownTimeout = 2 * time.Second

// changed handles the error of Wait, or nil, which says nothing of the queue pair. Called
// with mu held.
func (l *Link) changed(err error) {
	switch {
	case err == nil:
	case errors.Is(err, fabric.ErrPortDown) && l.path.otherCards():
		l.fail(lost(err))
	case errors.Is(err, fabric.ErrPortDown):
		// The port may come back; if not, the probe finds out.
		l.alarms.set(portAlarm, l.now().Add(portDownTimeout))
	case errors.Is(err, fabric.ErrDeviceRemoved):
		if _, failed := l.cause.(*lostError); failed && l.stage < seeking {
			l.cause = nil // the failure came of this: the device is gone
		}
		l.fail(lost(err))
		l.qp.noMoreCompletions = true
		l.qp.peerGone = true
	default:
		l.fail(lost(err))
		l.qp.peerGone = true
	}
}

// tearDown frees everything. Streams are closed: none of their calls touches the
// endpoint any more, but for Wake.
func (l *Link) tearDown() {
	l.lock()
	if l.stage != closed {
		l.enter(closed)
	}
	l.path.settled.Broadcast() // to those who wait for one
	l.sayDown()                // unless it has been said
	l.watch.timer.Stop()
	l.timer.Stop()
	for _, s := range l.streams.byNumber {
		if s != nil {
			s.forget()
		}
	}
	l.unlock()
	l.leavePath()
	l.lock()
	l.closeLost()
	l.unlock()
	l.path.work.Wait()
	// The memory is gone either way, and no call is left to return the error.
	_ = l.ep.Close()
	l.lock()
	defer l.unlock()
	l.memory.account.Release(l.memory.account.Bytes())
	l.delist() // and no sooner: a dial that lacks memory meanwhile finds that some is about to be free
}

// keepAlive finds out whether the peer's device is there. Guarded by Link.mu.
type keepAlive struct {
	activity uint64    // completions
	seen     uint64    // activity, at the last keepAliveTick
	due      bool      // the peer's device is to be asked for a sign of life
	probed   time.Time // when it was last asked
}

var errNoCompletion = errors.New("the device has not completed a keepalive probe")

// probe asks the peer's device for a sign of life. Called with mu held.
func (l *Link) probe() {
	if l.stage == up {
		l.alive.due, l.watch.wanted = true, true
	}
}

// keepAliveTick probes the peer's device if nothing has completed since the last
// tick. It comes twice in Config.KeepAlive, so that no silence is longer than
// that: a peer active just after a tick is not probed by the next. Called with mu held.
func (l *Link) keepAliveTick() {
	if l.stage >= ended {
		return
	}
	a := &l.alive
	l.alarms.set(keepAliveAlarm, l.now().Add(l.cfg.KeepAlive/2))
	if l.stage != up { // it may be again
		return
	}
	l.pollCompletions() // the peer may have answered, and no call has polled
	switch {
	case !l.send.control.probes.free(&l.send.slots) && l.since(a.probed) > l.cfg.ProbeTimeout:
		l.fail(&lostError{syscall.ETIMEDOUT, errNoCompletion})
	case a.activity == a.seen:
		l.probe()
	}
	a.seen = a.activity
}
