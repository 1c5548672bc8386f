package link

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/machine"
)

// life is who is told how far a link is. Guarded by Link.mu, but for lacksPath and gone.
type life struct {
	told      machine.Stage // that report has told of
	lacksPath atomic.Bool   // Stage.Pathless, for a Pool to read without mu
	gone      chan struct{} // closed when the link will not be up again
	settled   sync.Cond     // broadcast when the stage has changed, or the peer is known to have the link

	// See OnEnd, OnDown and OnMove.
	over  []func()
	down  []func(cause error)
	moved []func(i Info, took time.Duration, cause error)
}

// report tells everyone who is to know how far the link is, seeks another queue pair for one that is to go on, and
// ends the search for one that is not.
func (l *Link) report() {
	if live := int32(l.m.Live()); live != l.live.Load() { // to store costs as much as all else
		l.live.Store(live)
	}
	if since := l.m.Unheard(); since != l.unheard.was {
		l.unheard.set(since)
	}
	stage, before := l.m.Stage(), l.life.told
	if stage == before {
		return
	}
	l.life.told = stage
	l.lacksPath.Store(stage.Pathless())
	l.settled.Broadcast()
	if stage.Final() && !before.Final() {
		close(l.gone)
		for _, over := range l.over {
			go over()
		}
		l.over = nil
	}
	if stage == machine.Seeking {
		l.seek()
	}
	if stage >= machine.Ended && before < machine.Ended {
		l.path.end()
		l.sayDown()
	}
}

// Abort ends the link and all streams on it. Their owners still have to close them.
func (l *Link) Abort() {
	l.lock()
	defer l.unlock()
	l.m.GiveUp()
}

// Leave ends the link, with GOAWAY, if the owners of all of its streams have closed them: now, or when
// the peer's end of the last one has come.
func (l *Link) Leave() {
	l.lock()
	defer l.unlock()
	l.m.GoAway()
}

// retire has no more stream begin on a link that this side accepted, tells the peer so, and ends the
// link when it carries none.
func (l *Link) retire() {
	l.lock()
	defer l.unlock()
	l.m.Retire()
}

// Gone is closed when the link has ended, or nothing more can be sent on it.
func (l *Link) Gone() <-chan struct{} { return l.gone }

// usable reports whether the link carries what is on it.
func (l *Link) usable() bool {
	l.lock()
	defer l.unlock()
	return l.m.Stage() == machine.Up
}

// OnEnd has f called once, in a goroutine of its own, when no stream can begin on the link
// any more.
func (l *Link) OnEnd(f func()) {
	l.lock()
	defer l.unlock()
	if l.life.told.Final() {
		go f()
	} else {
		l.over = append(l.over, f)
	}
}

// OnDown has f called once, in a goroutine of its own, when the link has ended: with the
// reason, or with nil if no stream was on it.
func (l *Link) OnDown(f func(cause error)) {
	l.lock()
	defer l.unlock()
	l.down = append(l.down, f)
	if l.life.told >= machine.Ended {
		l.sayDown()
	}
}

// sayDown calls what OnDown was given, unless it has been called.
func (l *Link) sayDown() {
	for _, down := range l.down {
		go down(l.m.WhyDown())
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

// awaitSettled waits until enough returns true, which may change when settled is broadcast. It releases mu meanwhile.
func (l *Link) awaitSettled(enough func() bool) {
	l.unlock() // does what the machine wants, and rings: Wait does neither
	l.lock()
	for !enough() {
		l.settled.Wait()
		l.m.Begin()
	}
}

// awaitPath waits until a link that has lost its queue pair has another, or has ended. It releases mu meanwhile.
func (l *Link) awaitPath() {
	l.awaitSettled(func() bool { return !l.m.Stage().Pathless() })
}
