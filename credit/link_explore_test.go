package credit

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func linkOneWay(w *linkRules) *linkRules {
	w.oneWay = true
	return w
}

func linkQueue(w *linkRules, slots int) *linkRules {
	w.sendQueue = slots
	return w
}

// linkBreaks has the queue pair break, at any moment and as often as may be.
func linkBreaks(w *linkRules) *linkRules {
	w.breaks = true
	return w
}

// TestLinkNothingBreaksTheScheme visits every state of small links and checks in
// each what docs/protocol.md promises: no receive is ever missing, no send queue
// too full, no honest side takes another for a liar, and nobody waits for ever.
//
// need is how many receives are taken at once at most.
func TestLinkNothingBreaksTheScheme(t *testing.T) {
	for _, c := range []struct {
		name  string
		size  size
		rules *linkRules
		need  int
	}{
		{"D 4, W 1, T 1, data one way", small, linkOneWay(linkWorld(4, 1, 1)), 6},
		{"D 4, W 2, T 1, data one way", medium, linkOneWay(linkWorld(4, 2, 1)), 8},
		{"D 4, W 2, T 2, data one way", medium, linkOneWay(linkWorld(4, 2, 2)), 7},
		{"D 4, W 1, T 1", medium, linkWorld(4, 1, 1), 10},
		{"D 4, W 1, T 1, send queue", medium, linkQueue(linkOneWay(linkWorld(4, 1, 1)), 2), 6},
		{"D 4, W 1, T 1, data one way, breaks", small, linkBreaks(linkOneWay(linkWorld(4, 1, 1))), 6},
		{"D 4, W 1, T 1, breaks", medium, linkBreaks(linkWorld(4, 1, 1)), 10},
		{"D 4, W 2, T 2, data one way, breaks", medium, linkBreaks(linkOneWay(linkWorld(4, 2, 2))), 7},
		{"D 4, W 2, T 2", large, linkWorld(4, 2, 2), 11},
		{"D 4, W 2, T 1", large, linkWorld(4, 2, 1), 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.size.skip(t)
			f := breadthFirst(c.rules, 60_000_000)
			t.Logf("%v, need %d", f, c.rules.need)
			require.NoError(t, f.broken, "after %v", f.trace)
			require.True(t, f.complete)
			assert.Equal(t, c.need, c.rules.need)
		})
	}
}

// TestLinkOfTheProductWalked goes at random through a link with the windows that
// links have, whose states are too many to visit. It comes as far as to take
// every receive that there is.
func TestLinkOfTheProductWalked(t *testing.T) {
	medium.skip(t)
	r := rand.New(rand.NewPCG(1, 0))
	w := linkWorld(4, RecordWindow, RecordCredit)
	require.Equal(t, LinkControlReceives, w.control)
	require.NoError(t, walkAtRandom(w, 3_000_000, r).broken)
	t.Logf("need %d of %d", w.need, w.data+w.control)
}

// TestLinkChangedBreaks changes the scheme here and there, and expects that the
// exploration finds what each part of it is for.
func TestLinkChangedBreaks(t *testing.T) {
	for _, c := range []struct {
		name   string
		rules  *linkRules
		change func(*linkRules)
		want   string
	}{
		{"a receive too few", linkWorld(4, 1, 1), func(w *linkRules) { w.control-- }, "finds no slot"},
		{"receives for the window alone", linkWorld(4, 1, 1), func(w *linkRules) { w.control = 1 }, "finds no slot"},
		{"counted before posted again", linkOneWay(linkWorld(4, 1, 1)), func(w *linkRules) { w.repostLate = true }, "finds no receive"},
		{"link credit for anything", linkWorld(8, 2, 2), func(w *linkRules) { w.creditEarly = true }, "link credit for"},
		{"link credit on records only", linkWorld(4, 1, 1), func(w *linkRules) { w.creditNever = true }, "never may|may never send|never sends"},
		{"a threshold above the window", linkWorld(4, 1, 2), func(*linkRules) {}, "may never send"},
		{"data without a window", linkWorld(4, 1, 1), func(w *linkRules) { w.dataAnyTime = true }, "were granted|finds no receive"},
		{"nothing is sent again", linkBreaks(linkWorld(4, 1, 1)), func(w *linkRules) { w.replayNone = true }, "waits for link credit|may never send|has sent"},
		{"what was received is sent again", linkBreaks(linkWorld(4, 1, 1)), func(w *linkRules) { w.replayAll = true }, "comes as message|were granted|were sent"},
		{"records are sent again as they were", linkBreaks(linkWorld(4, 1, 1)), func(w *linkRules) { w.replayOld = true }, "acknowledgement of"},
		{"what the peer received is not acknowledged", linkBreaks(linkWorld(4, 1, 1)), func(w *linkRules) { w.resumeDeaf = true }, "comes as message|were granted|runs backwards"},
		{"what was received is not told", linkBreaks(linkWorld(4, 1, 1)), func(w *linkRules) { w.resumeMute = true }, "link credit for 0"},
		{"send slots freed by the peer's word", linkQueue(linkWorld(4, 1, 1), 1), func(w *linkRules) { w.slotsByWord = true }, "in a send queue of"},
	} {
		t.Run(c.name, func(t *testing.T) {
			medium.skip(t)
			c.change(c.rules)
			f := breadthFirst(c.rules, 4_000_000)
			require.Error(t, f.broken)
			assert.Regexp(t, c.want, f.broken.Error())
			require.NotEmpty(t, f.trace)
		})
	}
}
