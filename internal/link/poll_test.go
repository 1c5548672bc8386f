package link

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// polls has n waits find what they wait for, or be slept through, each in the time that this takes, and returns how many
// have polled.
func (p *spin) waits(n int, polled, slept time.Duration) (polls int) {
	for range n {
		trial, took := p.trial, slept
		if p.begin() {
			polls++
			took = polled
			p.found()
		}
		if trial {
			p.waited(took)
		}
	}
	return polls
}

// A call polls as long as that takes less time than to sleep, and what shows that takes little.
func TestPollingThatTakesLongerThanSleepingEnds(t *testing.T) {
	const us = time.Microsecond
	var p spin
	require.Equal(t, minTrialGap+trialWaits, p.waits(minTrialGap+2*trialWaits, 30*us, 20*us))
	require.LessOrEqual(t, p.waits(100_000, 30*us, 20*us), 100_000*4/100, "it polls no more, but to see whether that has changed")

	require.Greater(t, p.waits(2*maxGap, 2*us, 50*us), maxGap/2, "it has")
	require.GreaterOrEqual(t, p.waits(maxTrialGap, 2*us, 50*us), maxTrialGap-10*trialWaits)
	require.GreaterOrEqual(t, p.waits(1<<20, 2*us, 50*us), 1<<20-trialWaits*(1+1<<20/maxTrialGap))
	require.LessOrEqual(t, p.waits(1<<18, 20*us, 20*us), maxTrialGap+1<<18*4/100, "it is no better than sleeping")
}
