package link

import (
	"fmt"
	"slices"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// atRest looks when no goroutine can go on.
func (w *waitWorld) atRest() {
	if w.n != nil {
		synctest.Wait()
		w.look(true)
	}
}

// look sees that nothing is broken.
func (w *waitWorld) look(rest bool) {
	for i := range w.links {
		if what := w.broken(i, rest); what != "" {
			w.breach(fmt.Sprintf("side %d: %s", i, what))
		}
	}
}

// broken says what of the watch of a link is as it may not be at any time; or, while no
// goroutine can go on, then.
func (w *waitWorld) broken(side int, rest bool) string {
	l := w.links[side]
	all, _ := w.all()
	l.lock()
	defer l.unlock()
	streams := make(map[*Stream]bool)
	for _, m := range l.m.Streams() {
		if s, ok := m.Owner.(*Stream); ok {
			streams[s] = true
		}
	}
	for _, e := range all {
		if e.link != l {
			continue
		}
		streams[e.Stream] = true
		for i, d := range e.deadlines {
			if c := &e.calls[i]; rest && d.Expired() && (c.parked || c == l.watch.holder) {
				return fmt.Sprintf("call %d of stream %d sleeps, and its deadline has passed", i, e.m.Number())
			}
		}
	}
	watch, parked, atWork := &l.watch, 0, 0
	for s := range streams {
		if s.atWork {
			atWork++
			if rest && s.m.Uses() == machine.Orphaned && l.m.Stage() < machine.Ended {
				return fmt.Sprintf("stream %d is closed, and at work", s.m.Number())
			}
		}
		for i := range s.calls {
			c := &s.calls[i]
			if c.parked {
				parked++
			}
			if (c.parked || rest && c == watch.holder) && ready[i](s) {
				return fmt.Sprintf("call %d of stream %d sleeps, and what it waits for is there", i, s.m.Number())
			}
		}
	}
	ep := l.ep.(*unkindEndpoint)
	switch {
	case parked != watch.parked:
		return fmt.Sprintf("%d calls are parked, and %d are counted", parked, watch.parked)
	case parked > 0 && watch.holder == nil:
		return "calls are parked, and nobody has the watch"
	case !rest || l.m.Stage() == machine.Closed && !slices.Contains(allLinks(), l): // the engine has taken it down
	case atWork != watch.atWork:
		return fmt.Sprintf("%d streams are at work, and %d are counted", atWork, watch.atWork)
	case l.waitsInVain() != "":
		return l.waitsInVain()
	case l.m.Unneeded():
		return "the link is of no use any more, and the engine sleeps"
	case len(l.path.lost) > 0:
		return "an endpoint that the link had before is not closed"
	case watch.holder == nil && !watch.pending:
		return "nobody has the watch, and no timer is pending"
	case watch.holder == nil && field(l.m, "send.posting").Bool() == false && l.m.Stage() == machine.Up && waiting(l.m) > 0:
		return "something waits to be sent, and nobody has the watch"
	case watch.holder != &engine && l.m.Stage() != machine.Up:
		return "the engine has not got the watch of a link that lost its queue pair"
	case watch.holder != nil && (watch.in == nil || watch.in.(*unkindEndpoint).waits.Load() != 1):
		return "somebody has the watch, and does not wait"
	case w.n == nil || l.m.Stage() >= machine.Seeking:
	case watch.holder == nil:
		if time.Now().UnixNano()-ep.polled.Load() > int64(2*watchWithin) {
			return "nobody has polled for too long"
		}
	default:
		if n, _ := ep.Endpoint.Poll(make([]fabric.Completion, 1)); n > 0 {
			return "there is a completion, and whoever has the watch sleeps"
		}
	}
	return ""
}

// calm lets what goes on come to its end, and sees that no call waits that should not.
func (w *waitWorld) calm() {
	if w.n == nil {
		require.Eventually(w.t, func() bool {
			w.takeStreams()
			return w.stuck() == "" && w.broken(0, true) == "" && w.broken(1, true) == ""
		}, hang.After, time.Millisecond)
		return
	}
	const settled = 50 * time.Millisecond
	limit := time.Now().Add(time.Minute)
	for up := false; !up; up = w.links[0].upFor(settled) && w.links[1].upFor(settled) {
		if time.Now().After(limit) {
			w.breach("the link has no queue pair")
		}
		time.Sleep(settled)
		synctest.Wait()
	}
	w.takeStreams()
	w.look(true)
	if what := w.stuck(); what != "" {
		w.breach(what)
	}
}

// upFor reports whether the link has had its queue pair for so long.
func (l *Link) upFor(d time.Duration) bool {
	l.lock()
	defer l.unlock()
	return l.m.Stage() == machine.Up && time.Since(l.m.MovedAt()) >= d
}

// stuck says which call waits, if one should have returned by now.
func (w *waitWorld) stuck() string {
	if w.opening.Load() > 0 {
		return "Open waits"
	}
	all, _ := w.all()
	for _, e := range all {
		for i := range e.underWay {
			if !e.underWay[i].Load() {
				continue
			}
			what := ""
			switch {
			case i == closeCall:
				what = "its linger time is over"
			case e.isReady(i):
				what = "what it waits for is there"
			case i == writeCall || e.peeking.Load() || e.ended || e.other == nil || e.other.ended:
				continue
			case e.other.wrote.Load() > e.read.Load():
				what = "there are bytes"
			case e.other.underWay[writeCall].Load():
				what = "the peer waits for room"
			}
			if what != "" {
				return fmt.Sprintf("call %d of stream %d waits, and %s", i, e.m.Number(), what)
			}
		}
	}
	return ""
}
