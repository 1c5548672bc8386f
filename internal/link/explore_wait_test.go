package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// TestExploreWaiting has the calls of some streams wait for whatever comes to mind, on a link
// whose endpoints let other goroutines run wherever a wake-up could be lost. See
// [waitWorld.broken] and [waitWorld.stuck] for what may never be, and what not for long. It
// runs over sim in virtual time, where what has completed is noticed at once or, while no call
// waits, within twice watchWithin; and over shm.
//
// RINGNET_EXPLORE_WORLDS is how many links there are, one after the other, and
// RINGNET_EXPLORE_SEED what the steps of the first are drawn from, with one processor in every
// fourth. The order in which goroutines run is not drawn from it.
func TestExploreWaiting(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	testHookCopying = func(*Stream) { yield() }
	defer func() { testHookCopying = func(*Stream) {} }()
	t.Run("sim", func(t *testing.T) {
		first, worlds := variable("RINGNET_EXPLORE_SEED", 1), variable("RINGNET_EXPLORE_WORLDS", 150)
		if raceEnabled || testing.Short() {
			worlds /= 3
		}
		for seed := range worlds {
			runtime.GOMAXPROCS(1 + seed%4)
			synctest.Test(t, func(t *testing.T) { exploreWaitingOverSim(t, uint64(first+seed)) })
		}
	})
	t.Run("shm", func(t *testing.T) {
		f, err := shm.Fabric()
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip(err)
		}
		require.NoError(t, err)
		for seed := range uint64(8) {
			runtime.GOMAXPROCS(1 + int(seed%4))
			w := &waitWorld{t: t, r: rand.New(rand.NewPCG(seed, 0)), seed: seed, most: 200 * time.Microsecond}
			cfg := testConfig
			cfg.Budget = budget.New(func() budget.Limits { return budget.Limits{Registered: budget.Unlimited, Locked: budget.Unlimited} })
			cfg.BusyPoll = []time.Duration{0, 50 * time.Microsecond, -1}[seed%3]
			w.begin(&unkind{Fabric: f, w: w}, cfg)
			w.live(150)
		}
	})
}

func exploreWaitingOverSim(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	link := sim.Link{Spin: []int{0, 1, 3, 100}[r.IntN(4)]}
	if r.IntN(3) == 0 {
		link.Latency, link.Jitter, link.Seed = 20*time.Microsecond, 50*time.Microsecond, seed
	}
	w := &waitWorld{t: t, r: r, seed: seed, most: 3 * time.Millisecond, n: sim.New(link)}
	f := &unkind{Fabric: w.n, w: w}
	cfg := testConfig
	if r.IntN(2) == 0 {
		cfg = resuming(f)
		w.moves = true
	}
	w.begin(f, cfg)
	w.live(200)
	time.Sleep(2 * time.Minute)
	require.Zero(t, w.n.Open(), "endpoints or listeners left open")
}

// waitWorld is a link, with both its ends, and the calls on its streams.
type waitWorld struct {
	t       *testing.T
	r       *rand.Rand // of the driver alone
	seed    uint64
	most    time.Duration // that it pauses at a time
	many    int           // ends of streams that may be in use
	n       *sim.Network  // nil: it is in real time
	moves   bool          // the link outlives its queue pairs
	rings   bool          // each post has to wake the peer, without the link's lock
	links   [2]*Link
	backlog *backlog
	opening atomic.Int32 // calls of Open under way
	calls   sync.WaitGroup

	mu   sync.Mutex // guards ends
	ends []*waitEnd
}

// waitEnd is one end of a stream, and its calls: at most one of each kind is under way.
type waitEnd struct {
	*Stream
	port        uint16 // of the side that dialed
	other       *waitEnd
	deadlines   [2]*deadline.Deadline // of readCall and writeCall
	underWay    [calls]atomic.Bool
	peeking     atomic.Bool // readCall is a Peek
	ended       bool        // the driver has closed it, or a half of it
	wrote, read atomic.Int64
}

// breach ends everything.
func (w *waitWorld) breach(what string) {
	panic(fmt.Sprintf("RINGNET_EXPLORE_SEED=%d: %s", w.seed, what))
}

func (w *waitWorld) begin(f fabric.Fabric, cfg Setup) {
	w.many = 2 + 2*w.r.IntN(4)
	cfg.LinkIdle = time.Hour
	cfg.RecvBuffer, cfg.SendBuffer, cfg.SendQueue = 16<<10<<w.r.IntN(3), 64<<10, minSendQueue<<w.r.IntN(3)
	cfg.FirstStaging = 4 << 10 << w.r.IntN(5)
	w.rings = w.r.IntN(2) == 0
	var c, s *Stream
	c, s, w.backlog = connectLink(w.t, listensAtLoopback{f}, cfg, cfg)
	w.links = [2]*Link{c.link, s.link}
	w.add(c, c.LocalAddr().Port())
	w.add(s, s.RemoteAddr().Port())
}

// listensAtLoopback is a fabric for connectLink.
type listensAtLoopback struct{ fabric.Fabric }

func (f listensAtLoopback) Listen(netip.AddrPort, int) (fabric.Listener, error) {
	return f.Fabric.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 8)
}

// add enters the end of a stream.
func (w *waitWorld) add(s *Stream, port uint16) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := &waitEnd{Stream: s, port: port, deadlines: [2]*deadline.Deadline{deadline.New(), deadline.New()}}
	for _, o := range w.ends {
		if o.port == port && o.other == nil && o.link != s.link {
			o.other, e.other = e, o
		}
	}
	w.ends = append(w.ends, e)
}

// all returns the ends, and those of them that are in use.
func (w *waitWorld) all() (all, inUse []*waitEnd) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.ends {
		if !e.ended {
			inUse = append(inUse, e)
		}
	}
	return slices.Clone(w.ends), inUse
}

// live makes so many steps, looks now and then, and closes everything.
func (w *waitWorld) live(steps int) {
	for range steps {
		w.step()
		switch w.r.IntN(10) {
		case 0, 1:
			time.Sleep(time.Duration(w.r.Int64N(int64(w.most))))
		case 2:
			w.atRest()
		case 3:
			runtime.Gosched()
		}
		if w.look(false); w.r.IntN(20) == 0 {
			w.calm()
		}
	}
	w.calm()
	w.finish()
}

// finish closes everything, and has one side end the link as soon as it may.
func (w *waitWorld) finish() {
	w.takeStreams()
	linger := time.Duration(w.r.IntN(2)) * time.Second
	all, _ := w.all()
	for _, e := range all {
		w.end(e, linger)
	}
	leaving := w.links[w.r.IntN(2)]
	ended := func() bool {
		leaving.Leave()
		return !w.links[0].usable() && !w.links[1].usable()
	}
	if w.n == nil {
		w.calls.Wait()
		require.Eventually(w.t, ended, hang.After, time.Millisecond)
		return
	}
	for limit := time.Now().Add(time.Minute); !ended(); {
		yield()
		if w.r.IntN(20) == 0 {
			time.Sleep(time.Duration(w.r.Int64N(int64(time.Millisecond))))
		}
		w.look(false)
		if time.Now().After(limit) {
			w.breach("the link does not leave")
		}
	}
	w.calls.Wait()
	time.Sleep(2 * closeTimeout)
	w.atRest()
}

// step begins a call, or does something that has one return.
func (w *waitWorld) step() {
	w.takeStreams()
	w.pollAgain()
	_, inUse := w.all()
	i := w.r.IntN(len(inUse))
	e, lasting := inUse[i], i < 2 // the link has a stream at all times
	linger := time.Duration(w.r.IntN(3)) * 5 * time.Millisecond
	switch x := w.r.IntN(100); {
	case x < 35:
		w.startRead(e, 1+w.r.IntN(4000), w.r.IntN(4) == 0)
	case x < 65:
		p := make([]byte, 1+w.r.IntN(1<<(1+w.r.IntN(17))))
		w.call(&e.underWay[writeCall], func() {
			n, _ := e.Write(p, e.deadlines[writeCall])
			e.wrote.Add(int64(n))
		})
	case x < 70: // it passes while a call is about to wait
		d := e.deadlines[readCall]
		d.Set(time.Time{})
		w.startRead(e, 1, false)
		yield()
		if d.Set(time.Now().Add(-1)); w.r.IntN(2) == 0 {
			w.atRest()
		}
	case x < 75:
		e.deadlines[w.r.IntN(2)].Set(time.Now().Add(time.Duration(w.r.Int64N(int64(2 * w.most)))))
	case x < 82:
		e.deadlines[w.r.IntN(2)].Set(time.Time{})
	case x < 88 && len(inUse) < w.many:
		w.opening.Add(1)
		w.calls.Go(func() {
			defer w.opening.Add(-1)
			if s, err := w.links[0].Open(context.Background()); err == nil {
				w.add(s, s.LocalAddr().Port())
			}
		})
	case x < 90 && !lasting:
		e.ended = true
		w.calls.Go(func() { _ = e.CloseRead() })
	case x < 92 && !lasting:
		e.ended = true
		w.calls.Go(func() { _ = e.CloseWrite() })
	case x < 95 && !lasting:
		w.end(e, linger)
	case x < 98 && w.moves:
		if w.lose(w.r.IntN(2), w.r.IntN(5)); w.r.IntN(2) == 0 {
			w.atRest()
		}
	}
}

// pollAgain has calls poll that would have slept at once, for polling has found nothing lately.
func (w *waitWorld) pollAgain() {
	l := w.links[w.r.IntN(2)]
	l.lock()
	defer l.unlock()
	l.watch.spins = [calls + 1]spin{}
}

// call makes a call in a goroutine, unless one of its kind is under way.
func (w *waitWorld) call(underWay *atomic.Bool, f func()) {
	if underWay.CompareAndSwap(false, true) {
		w.calls.Go(func() {
			defer underWay.Store(false)
			f()
		})
	}
}

func (w *waitWorld) startRead(e *waitEnd, n int, peek bool) {
	w.call(&e.underWay[readCall], func() {
		if e.peeking.Store(peek); peek {
			_, _ = e.Peek(n, e.deadlines[readCall])
			return
		}
		m, _ := e.Read(make([]byte, n), e.deadlines[readCall])
		e.read.Add(int64(m))
	})
}

// end closes an end.
func (w *waitWorld) end(e *waitEnd, linger time.Duration) {
	e.ended = true
	w.call(&e.underWay[closeCall], func() { _ = e.Close(linger) })
}

// lose has a link lose its queue pair, or says that its port is down.
func (w *waitWorld) lose(side, how int) {
	ep := w.links[side].endpoint().(*unkindEndpoint).Endpoint.(*sim.Endpoint)
	switch {
	case how == 0:
		w.n.PortDown()
	case how < 3:
		ep.Fail(fabric.ErrQueuePair)
	case ep.Established():
		ep.Kill()
	}
}

// takeStreams takes the streams that have come.
func (w *waitWorld) takeStreams() {
	w.backlog.mu.Lock()
	came := w.backlog.streams
	w.backlog.streams = nil
	w.backlog.mu.Unlock()
	for _, s := range came {
		w.add(s, s.RemoteAddr().Port())
	}
}
