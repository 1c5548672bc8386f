package link

import (
	"runtime"
	"slices"
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

// spin is whether to poll before sleeping, for calls of one kind or for the engine: unless that has lately found nothing;
// then one wait in a while tries whether it does again. It may find what is waited for and be no use: where processors
// are few, who polls keeps one from who is to answer. So now and then a trial shows which takes less time.
type spin struct {
	gap  int // waits between two that poll; 0: each does
	skip int // waits until the next that polls

	trialIn  int                           // waits that find something until the next trial
	trialGap int                           // so many are between this trial and the next; 0: there was none
	taken    int                           // waits of the trial
	took     [2 * trialWaits]time.Duration // each: first those that poll, then those that sleep
	trial    bool                          // one is under way
}

// maxGap is how many waits there are at most between two that poll.
const maxGap = 256

// A trial has trialWaits waits poll, and as many sleep. There are minTrialGap waits that find something before the first,
// and twice as many after each that shows that polling takes less time, to maxTrialGap: then trials cost less than one
// part in a hundred where to sleep takes forty times as long.
const (
	trialWaits  = 8
	minTrialGap = 64
	maxTrialGap = 1 << 15
)

// begin reports whether this wait is to begin with polling.
func (p *spin) begin() bool {
	switch {
	case p.trial:
		return p.taken < trialWaits
	case p.skip > 0:
		p.skip--
		return false
	}
	return true
}

// found notes that polling has found what was waited for.
func (p *spin) found() {
	if p.trial {
		return
	}
	switch {
	case p.gap > 0:
		p.gap, p.trialGap, p.trialIn = 0, minTrialGap, 1
	case p.trialGap == 0:
		p.trialGap, p.trialIn = minTrialGap, minTrialGap
	}
	if p.trialIn--; p.trialIn <= 0 {
		p.trial, p.taken = true, 0
	}
}

// missed notes that it has not.
func (p *spin) missed() {
	if p.trial {
		return
	}
	p.gap = min(max(2*p.gap, 1), maxGap)
	p.skip = p.gap
}

// waited notes how long a wait of the trial has taken.
func (p *spin) waited(d time.Duration) {
	p.took[p.taken] = d
	if p.taken++; p.taken < len(p.took) {
		return
	}
	p.trial = false
	polled, slept := p.took[:trialWaits], p.took[trialWaits:]
	slices.Sort(polled)
	slices.Sort(slept)
	if 8*polled[trialWaits/2] < 7*slept[trialWaits/2] {
		p.trialGap = min(2*p.trialGap, maxTrialGap)
		p.trialIn = p.trialGap
		return
	}
	p.gap, p.skip = maxGap, maxGap
}
