package link

import (
	"errors"
	"runtime"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// run is the goroutine of a link, its engine. It moves on what nobody waits for,
// takes note of what happens to the connection, and takes the link down when it
// has ended and nothing of it is owned any more.
func (l *Link) run() {
	for last := false; !last; {
		ep, number := l.endpoint()
		last = l.turn(number, ep.Wait())
		l.closeLost()
	}
	l.tearDown()
}

// endpoint is the one that the link has now, and its number.
func (l *Link) endpoint() (ep fabric.Endpoint, number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ep, l.stats.Moves
}

// closeLost has the endpoints closed that the link has had before, which takes a device
// whose cable is out seconds. Called by the engine, which waits on none.
func (l *Link) closeLost() {
	l.mu.Lock()
	lost := l.path.lost
	l.path.lost = nil
	l.mu.Unlock()
	for _, ep := range lost {
		l.path.work.Go(func() { _ = ep.Close() }) // there is nobody to tell
	}
}

// turn deals with one event of an endpoint, and says whether it was the last.
func (l *Link) turn(number uint64, event error) (last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if number != l.stats.Moves {
		return false
	}
	l.stats.Events++
	l.watch.armed = false
	l.send.called = false
	l.watch.opened = false
	served := l.watch.serves
	l.changed(event)
	for pass := 1; ; pass++ {
		before := l.alive.activity
		l.pollAndSend()
		if l.alive.activity == before || pass == maxPasses || l.stage != up {
			break
		}
		// Those who have been woken go first; by then there may be more, of
		// which nobody need tell this side.
		l.mu.Unlock()
		runtime.Gosched()
		l.mu.Lock()
	}
	if l.watch.serves != served && !l.watch.opened {
		l.rewatch() // those who have been woken look again
	} else {
		l.watchNow()
	}
	return l.owned == 0 && !l.send.posting && (l.stage == ended && l.peerGone || l.forced)
}

// maxPasses is how often the engine looks for more before it waits again. Without
// a bound a busy link would keep the scheduler from asking the network poller for
// what the rest of the program waits for.
const maxPasses = 8

// portPatience is how long a port may be down before the peer is probed. Most
// are back by then. Soft-RoCE, which finds no route while its interface is down,
// fails at once whatever is sent meanwhile.
const portPatience = 2 * time.Second

// changed takes what Wait said of the connection. Called with mu held.
func (l *Link) changed(err error) {
	switch {
	case err == nil:
	case errors.Is(err, fabric.ErrPortDown) && l.path.standby != nil:
		l.fail(lost(err))
	case errors.Is(err, fabric.ErrPortDown):
		// It may come back; if not, the probe finds out.
		time.AfterFunc(portPatience, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.probe()
		})
	case errors.Is(err, fabric.ErrDeviceRemoved):
		if _, failed := l.cause.(*lostError); failed && l.stage == draining {
			l.cause, l.final = nil, false // that the device is gone is why something failed
		}
		l.fail(lost(err))
		l.abandoned = true
		l.peerGone = true
	default:
		l.fail(lost(err))
		l.peerGone = true
	}
}

// tearDown frees everything. Streams are closed: none of their calls touches the
// endpoint any more, but for Wake.
func (l *Link) tearDown() {
	l.mu.Lock()
	l.stage = closed
	l.sayDown() // unless it has been said
	l.watch.timer.Stop()
	if l.alive.timer != nil {
		l.alive.timer.Stop()
	}
	for _, timer := range []*time.Timer{l.drain, l.idle, l.tidying.timer} {
		if timer != nil {
			timer.Stop()
		}
	}
	for _, s := range l.streams {
		if s == nil {
			continue
		}
		s.forget()
		if s.lastCall != nil {
			s.lastCall.Stop()
		}
	}
	l.mu.Unlock()
	l.leavePath()
	l.closeLost()
	l.path.work.Wait()
	// The memory is gone either way; there is nobody to tell.
	_ = l.ep.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.account.Release(l.account.Bytes())
	l.queues = 0
	l.delist() // and no sooner: whoever lacks memory meanwhile finds that it is about to be had
}

// keepAlive finds out whether the peer's device is there. Guarded by Link.mu.
type keepAlive struct {
	timer    *time.Timer // nil if there are to be no probes
	activity uint64      // completions
	seen     uint64      // activity, when timer last fired
	due      bool        // the peer's device is to be asked for a sign of life
	probed   time.Time   // when it was last asked
}

var errNoCompletion = errors.New("the device does not complete a probe")

// probe asks the peer's device for a sign of life. Called with mu held.
func (l *Link) probe() {
	if l.stage != up {
		return
	}
	l.alive.due = true
	l.trySend()
	l.watchNow()
}

// keepAliveTick probes the peer's device if nothing has completed since the last
// tick. It comes twice in Config.KeepAlive, so that no silence is longer than
// that: a peer active just after a tick is not probed by the next.
func (l *Link) keepAliveTick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stage >= ended {
		return
	}
	a := &l.alive
	defer a.timer.Reset(l.cfg.KeepAlive / 2)
	if l.stage != up { // it may be again
		return
	}
	l.pollAndSend() // perhaps it has answered, and nobody has looked
	switch {
	case !l.send.probes.free(&l.send.slots) && time.Since(a.probed) > l.cfg.Patience:
		l.fail(&lostError{syscall.ETIMEDOUT, errNoCompletion})
	case a.activity == a.seen:
		l.probe()
	}
	a.seen = a.activity
}
