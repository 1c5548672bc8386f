package link

import (
	"runtime"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/pollers"
)

// A holder of the watch that polls looks at the clock, and lets other goroutines run, once in so
// many polls: each costs more than a poll, and runtime.Gosched wakes another thread to look for
// work.
const (
	pollsPerClock = 16
	pollsPerYield = 64
)

// changesWithin is how often a holder that polls for long asks the endpoint for a change of the
// connection, of which no completion may tell: that the peer has gone, say.
const changesWithin = 10 * time.Millisecond

// poll polls before the holder sleeps, as often as the fabric advises (fabric.Limits.Spin) if that
// has lately been worthwhile, or for Config.BusyPoll. It returns whether that has found what the
// holder waits for; the engine waits for anything. It releases mu meanwhile.
//
// The more calls wait besides, the sooner one of them is answered, unless who is to answer waits for this
// processor. So polling is worthwhile then if it finds something soon, and if it has not lately it ends there. With
// 64 connections of net/http on two processors the slowest hundredth of requests took 4.5 ms so, and 6 ms with
// polls that were all as long as that of one connection.
func (l *Link) poll(s *Stream, which int, d *deadline.Deadline) bool {
	spin := &l.watch.spins[which]
	others := l.watch.parked
	if !l.polls() || l.pollsForNobody(s) || l.cfg.BusyPoll == 0 && others == 0 && !spin.begin() {
		return false
	}
	most := l.limits.Spin
	soon := 2 * most / (2 + others)
	if spin.late() {
		most = soon
	}
	poll, ok := pollers.Begin()
	if !ok {
		return false
	}
	defer poll.End()
	var began, asked time.Time
	if l.cfg.BusyPoll > 0 {
		began = time.Now()
		asked = began
	}
	passes := 0
	for polls := 1; ; polls++ {
		l.unlock()
		if polls%pollsPerYield == 0 {
			runtime.Gosched()
			if l.cfg.BusyPoll > 0 {
				pollers.GiveWay()
			}
		}
		l.lock()
		l.watch.called = false // this looks
		found := l.pollCompletions()
		switch {
		case l.satisfied(s, which, d):
			spin.found(polls <= soon)
			return true
		case l.needsEngine():
			return false
		case found && s == nil:
			spin.found(polls <= soon)
			l.letOthersRun() // those that have been woken
			return true
		case l.cfg.BusyPoll > 0:
			if polls%pollsPerClock != 0 {
				continue
			}
			switch now := time.Now(); {
			case now.Sub(began) > l.cfg.BusyPoll, l.pollsForNobody(s):
				return false
			case now.Sub(asked) > changesWithin:
				asked = now
				l.ep.Wake()
				l.await(nil)
			}
		case polls >= most:
			spin.missed()
			return false
		case l.watch.atWork > 0: // they may want this processor
			if passes++; passes == maxPasses {
				return false
			}
			l.letOthersRun()
		}
	}
}

// pollsForNobody reports whether the engine, for which s is nil, would poll for Config.BusyPoll
// although no call waits.
func (l *Link) pollsForNobody(s *Stream) bool {
	return s == nil && l.cfg.BusyPoll > 0 && l.watch.parked == 0
}

// spin is whether to poll before sleeping, for calls of one kind or for the engine: unless that
// has lately found nothing, or too late; then one wait in a while tries whether it does again.
type spin struct {
	gap  int // waits between two that poll; 0: each does
	skip int // waits until the next that polls
}

// maxGap is how many waits there are at most between two that poll.
const maxGap = 256

// begin reports whether this wait is to begin with polling.
func (p *spin) begin() bool {
	if p.skip > 0 {
		p.skip--
		return false
	}
	return true
}

// late reports whether polling has lately found nothing, or too late.
func (p *spin) late() bool { return p.gap > 0 }

// found notes that polling has found what was waited for, and whether soon enough.
func (p *spin) found(soon bool) {
	if !soon {
		p.missed()
		return
	}
	*p = spin{}
}

// missed notes that it has not.
func (p *spin) missed() {
	p.gap = min(max(2*p.gap, 1), maxGap)
	p.skip = p.gap
}
