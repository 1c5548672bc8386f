package link

import (
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// faults is what is broken in a world.
type faults struct {
	w     *world
	storm int // steps for which faults are likelier, since one has just struck

	fatal       atomic.Int64 // so many messages from now on one is not acknowledged
	unpostable  atomic.Int64 // so many posts from now on one fails
	unopenable  atomic.Int64 // queue pairs that cannot be made
	opening     atomic.Int64 // how long it takes to make one
	unregistred atomic.Int64 // registrations that fail
	registered  atomic.Int64 // registrations so far
	unflushed   atomic.Bool  // queue pairs in ERR give nothing back
	lost        atomic.Int64 // the kind of messages of the connection manager that are lost; 0: none
	lose        atomic.Int64 // so many of those
	failing     atomic.Int64 // and so long after that the queue pair of who sent it fails; 0: it does not

	undos []*undo
}

// undo ends a fault that lasts.
type undo struct {
	timer *time.Timer
	do    func()
}

var errFault = errors.New("a fault")

// once fails the one of which a counter says how far away it is.
func once(n *atomic.Int64) error {
	if n.Load() > 0 && n.Add(-1) == 0 {
		return errFault
	}
	return nil
}

// some fails those that a counter counts.
func some(n *atomic.Int64) error {
	if n.Load() > 0 && n.Add(-1) >= 0 {
		return errFault
	}
	return nil
}

func (f *faults) hooks() sim.Faults {
	return sim.Faults{
		Open: func(*sim.Endpoint) error {
			time.Sleep(time.Duration(f.opening.Load()))
			return some(&f.unopenable)
		},
		Register: func(_ *sim.Endpoint, n int) error {
			time.Sleep(f.slowness(n))
			return some(&f.unregistred)
		},
		PostRecv: func(*sim.Endpoint, int) error { return once(&f.unpostable) },
		PostSend: func(*sim.Endpoint, []fabric.WorkRequest) error {
			if f.w.crowded {
				runtime.Gosched() // others come as far as to the link's lock, as on more processors
			}
			return once(&f.unpostable)
		},
		Send: func(*sim.Endpoint, *fabric.WorkRequest) fabric.Status {
			if once(&f.fatal) != nil {
				return fabric.RetryExceeded
			}
			return fabric.OK
		},
		Unflushed: func(*sim.Endpoint) bool { return f.unflushed.Load() },
		Lose: func(e *sim.Endpoint, m sim.Message) bool {
			lost := int64(m)+1 == f.lost.Load() && some(&f.lose) != nil
			if d := f.failing.Load(); lost && d > 0 {
				time.AfterFunc(time.Duration(d), func() { e.Fail(fabric.ErrQueuePair) })
			}
			return lost
		},
	}
}

// slowness is how long a device takes over the next n bytes: a third of those are slow, with up to
// 80 ms for each MiB.
func (f *faults) slowness(n int) time.Duration {
	k := f.registered.Add(1)
	if k%3 != 0 {
		return 0
	}
	return time.Duration(n) * time.Duration(k%80) * time.Millisecond >> 20
}

// later undoes something after a while, or when the faults end.
func (f *faults) later(most time.Duration, do func()) {
	u := &undo{do: do}
	u.timer = time.AfterFunc(time.Duration(f.w.r.Int64N(int64(most))), do)
	f.undos = append(f.undos, u)
}

// mend ends all faults.
func (f *faults) mend() {
	for _, u := range f.undos {
		if u.timer.Stop() {
			u.do()
		}
	}
	f.undos = nil
	for _, n := range []*atomic.Int64{&f.fatal, &f.unpostable, &f.unopenable, &f.opening, &f.unregistred, &f.lost, &f.failing} {
		n.Store(0)
	}
	f.storm = 0
}

// fault breaks something, and says what.
func (w *world) fault() string {
	f, r := &w.faults, w.r
	all := w.n.Endpoints()
	if len(all) == 0 {
		return ""
	}
	ep := all[r.IntN(len(all))]
	if r.IntN(3) == 0 {
		ep = all[len(all)-1] // it may be of a link that is about to go on
	}
	kind := ""
	switch x := r.IntN(100); {
	case x < 15:
		kind = "queue pair in error"
		ep.Fail(fabric.ErrQueuePair)
	case x < 20:
		kind = "both queue pairs in error" // so the requests of both cross
		if r.IntN(2) == 0 {
			kind = "both queue pairs in error, and others made slowly" // so they give way to each other
			f.opening.Store(r.Int64N(int64(3 * attemptPause)))
			f.later(5*time.Second, func() { f.opening.Store(0) })
		}
		ep.Fail(fabric.ErrQueuePair)
		if peer := w.n.Find(ep.RemoteAddr(), ep.LocalAddr()); peer != nil {
			peer.Fail(fabric.ErrQueuePair)
		}
	case x < 30:
		if !ep.Established() {
			return "" // a request is refused so only if its process is dead
		}
		kind = "disconnected"
		ep.Kill()
	case x < 45:
		kind = "a message is not acknowledged"
		f.fatal.Store(int64(1 + r.IntN(1<<r.IntN(7))))
	case x < 50:
		kind = "a post fails"
		f.unpostable.Store(int64(1 + r.IntN(1<<r.IntN(6))))
	case x < 53:
		kind = "no queue pair can be made"
		f.unopenable.Store(int64(1 + r.IntN(4)))
	case x < 58:
		kind = "nothing can be registered"
		f.unregistred.Store(int64(1 + r.IntN(8)))
	case x < 63:
		kind = "cable out"
		w.n.Cut(true)
		f.later(time.Millisecond<<r.IntN(15), func() { w.n.Cut(false) })
	case x < 66 && len(w.cards) > 0:
		kind = "a card's cable out"
		card := w.cards[r.IntN(len(w.cards))]
		w.n.CutCard(card, true)
		f.later(time.Millisecond<<r.IntN(15), func() { w.n.CutCard(card, false) })
	case x < 71:
		kind = "a connection's cable out"
		ep.Cut(true)
		f.later(time.Millisecond<<r.IntN(13), func() { ep.Cut(false) })
	case x < 78:
		kind = "completions of sends late"
		ep.HoldSends(true)
		f.later(time.Millisecond<<r.IntN(13), func() { ep.HoldSends(false) })
	case x < 85:
		kind = "completions of receives late"
		ep.HoldReceives(true)
		f.later(time.Millisecond<<r.IntN(13), func() { ep.HoldReceives(false) })
	case x < 94:
		kind = "a message of the connection manager is lost"
		f.lost.Store(int64(1 + r.IntN(6)))
		f.lose.Store(int64(1 + r.IntN(3)))
		f.failing.Store(0)
	case x < 97:
		kind = "a handshake loses its last message, and then the queue pair"
		f.lost.Store(int64(1 + sim.REP + sim.Message(r.IntN(2))))
		f.lose.Store(1)
		f.failing.Store(r.Int64N(int64(time.Microsecond) << r.IntN(16)))
		w.makeLink(w.lines[r.IntN(len(w.lines))])
	case x < 98:
		kind = "nothing is flushed"
		f.unflushed.Store(true)
		f.later(time.Second, func() { f.unflushed.Store(false) })
	case x < 99:
		kind = "port down"
		w.n.PortDown()
	case r.IntN(4) == 0 && w.alive:
		kind = "a process gives a link up"
		l := w.anyLink()
		if l == nil {
			return ""
		}
		l.Abort()
	default:
		return ""
	}
	if f.storm == 0 && r.IntN(3) == 0 {
		f.storm = 1 + r.IntN(10)
	}
	w.tally.faults++
	w.mu.Lock()
	w.note(kind, uint64(ep.LocalAddr().Port()), uint64(ep.RemoteAddr().Port()))
	w.mu.Unlock()
	return kind
}

// anyLink is a link whose end is no breach.
func (w *world) anyLink() *Link {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pairs) == 0 {
		return nil
	}
	first := w.pairs[slices.Min(slices.Collect(maps.Keys(w.pairs)))]
	first.excused = true
	for _, l := range first.ends {
		if l != nil {
			return l
		}
	}
	return nil
}
