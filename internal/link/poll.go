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
func (l *Link) poll(s *Stream, which int, d *deadline.Deadline) bool {
	spin := &l.watch.spins[which]
	if !l.polls() || l.pollsForNobody(s) || l.cfg.BusyPoll == 0 && !spin.begin() {
		return false
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
			spin.found()
			return true
		case l.needsEngine():
			return false
		case found && s == nil:
			spin.found()
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
		case polls >= l.limits.Spin:
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
// has lately found nothing; then one wait in a while tries whether it does again.
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

// found notes that polling has found what was waited for.
func (p *spin) found() { p.gap = 0 }

// missed notes that it has not.
func (p *spin) missed() {
	p.gap = min(max(2*p.gap, 1), maxGap)
	p.skip = p.gap
}
