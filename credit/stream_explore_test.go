package credit

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// streams is a world of two rings of two bytes, with so many messages under way.
func streams(underWay int, changes ...func(*streamWorld)) *streamWorld {
	return streamsOn(&streamWorld{underWay: underWay}, changes)
}

// streamsOnLink is the same on the ledger of a link.
func streamsOnLink(data, records, credit int, changes ...func(*streamWorld)) *streamWorld {
	return streamsOn(&streamWorld{data: data, records: records, credit: credit, control: records + records/credit + 4}, changes)
}

func streamsOn(w *streamWorld, changes []func(*streamWorld)) *streamWorld {
	w.batch, w.numbers, w.pool, w.ring = 1, 1, []int{2, 2}, 2
	for _, change := range changes {
		change(w)
	}
	return w
}

// aNumberTwice has A dial two streams, one after the other, which end in every
// way.
func aNumberTwice(w *streamWorld) {
	w.dials, w.writes = 2, [2]int{1, 1}
	everyEnd(w)
}

func closing(w *streamWorld) { w.closes, w.halves, w.patience = true, false, false }

func everyEnd(w *streamWorld) { w.closes, w.halves, w.patience = true, true, true }

// growing has A write to one stream, and B offer a larger ring.
func growing(w *streamWorld) {
	w.open, w.pool, w.writes, w.offers = 1, []int{2, 4}, [2]int{5, 0}, [2]int{0, 1}
	w.closes = true
}

func shrinking(w *streamWorld) {
	growing(w)
	w.ring, w.writes = 4, [2]int{6, 0}
}

// growingAndShrinking has B offer twice.
func growingAndShrinking(w *streamWorld) {
	growing(w)
	w.offers, w.writes = [2]int{0, 2}, [2]int{6, 0}
}

// handingOver has a stream with an offer end, and another get the memory.
func handingOver(w *streamWorld) {
	w.open, w.dials, w.numbers = 1, 1, 2
	w.pool, w.offer, w.writes, w.offers = []int{2, 4, 2}, 4, [2]int{1, 0}, [2]int{0, 1}
	w.closes = true
}

// saturated has two streams that are written to for ever.
func saturated(w *streamWorld) {
	w.open, w.numbers, w.endless, w.writes = 2, 2, true, [2]int{1, 0}
}

// readingSlowly has the reader never close.
func readingSlowly(w *streamWorld) { w.closes = false }

// comingAndGoing has A dial for ever.
func comingAndGoing(w *streamWorld) { w.endless, w.writes = true, [2]int{1, 0} }

// everything has both sides do all that there is, for ever.
func everything(w *streamWorld) {
	everyEnd(w)
	w.aborts, w.givesUp, w.refuses = true, true, true
	w.batch, w.numbers, w.dials, w.endless = 2, 2, 1, true
	w.pool, w.writes, w.offers = []int{2, 4, 2, 4}, [2]int{1, 1}, [2]int{1, 1}
}

func oneStream(w *streamWorld) { w.open = 1 }

func dialing(streams int) func(*streamWorld) {
	return func(w *streamWorld) { w.dials = streams }
}

func aborting(w *streamWorld)        { w.aborts = true }
func twoRecords(w *streamWorld)      { w.batch = 2 }
func giveUpAndRefuse(w *streamWorld) { w.givesUp, w.refuses = true, true }
func goingAway(w *streamWorld)       { w.goAway = true }
func oneNumber(w *streamWorld)       { w.numbers, w.open, w.dials = 1, 0, 2 }

func twoNumbers(w *streamWorld) { w.numbers = 2 }

func writing(a, b int) func(*streamWorld) {
	return func(w *streamWorld) { w.writes = [2]int{a, b} }
}

func memory(sizes ...int) func(*streamWorld) {
	return func(w *streamWorld) { w.pool = sizes }
}

// TestStreamsNothingBreaksTheRules visits every state of small worlds of
// streams: no WRITE meets memory that is not its stream's, no byte is lost, no
// message is taken for another stream's, no honest side is taken for a liar,
// nothing goes on for ever, and when nothing goes on, nobody waits who should not. Endless worlds
// come to no end: their streams are written to for ever and read now and then, or dialed for ever.
func TestStreamsNothingBreaksTheRules(t *testing.T) {
	for _, c := range []struct {
		name  string
		size  size
		world *streamWorld
	}{
		{"a stream", small, streams(3, aNumberTwice, dialing(1))},
		{"a number twice, two records", medium, streams(3, aNumberTwice, twoRecords)},
		{"a number twice, more bytes", large, streams(3, aNumberTwice, writing(2, 1))},
		{"a number twice, aborting", medium, streams(3, aNumberTwice, aborting)},
		{"refused and given up", large, streams(3, aNumberTwice, giveUpAndRefuse)},
		{"GOAWAY", medium, streams(3, aNumberTwice, giveUpAndRefuse, goingAway, writing(1, 0))},
		{"two at a time", medium, streams(2, aNumberTwice, closing, twoNumbers, writing(1, 0))},
		{"two at a time, every end", large, streams(2, aNumberTwice, twoNumbers, writing(1, 0))},
		{"growing, every end", medium, streams(4, growing, everyEnd)},
		{"shrinking", medium, streams(4, shrinking)},
		{"shrinking, every end", large, streams(4, shrinking, everyEnd, aborting)},
		{"growing and shrinking", medium, streams(4, growingAndShrinking)},
		{"growing and shrinking, every end", large, streams(4, growingAndShrinking, everyEnd)},
		{"growing and shrinking, both ways", large, streams(3, growingAndShrinking, everyEnd, writing(4, 1))},
		{"handing over", medium, streams(3, handingOver, everyEnd, aborting, oneNumber)},
		{"handing over while both are", large, streams(3, handingOver)},
		{"on a link, a number twice", medium, streamsOnLink(4, 1, 1, aNumberTwice, closing)},
		{"on a link, a number twice, every end", large, streamsOnLink(4, 1, 1, aNumberTwice, twoRecords)},
		{"on a link, growing", large, streamsOnLink(4, 1, 1, growing)},
		{"on a link, growing and shrinking", large, streamsOnLink(4, 1, 1, growingAndShrinking)},
		{"two streams, endless", medium, streams(2, saturated)},
		{"one stream, both ways, endless", medium, streams(4, saturated, oneStream, writing(1, 1))},
		{"on a link, one way, endless", medium, streamsOnLink(4, 1, 1, saturated, oneStream)},
		{"on a link, two streams, endless", large, streamsOnLink(4, 1, 1, saturated, twoRecords)},
		{"on a link, both ways, endless", large, streamsOnLink(4, 1, 1, saturated, oneStream, writing(1, 1))},
		{"streams that come and go, endless", medium, streams(2, dialing(1), closing, comingAndGoing)},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.size.skip(t)
			start := time.Now()
			explore := depthFirst[streamState, streamAction]
			if c.world.endless {
				explore = breadthFirst[streamState, streamAction]
			}
			f := explore(c.world, 60_000_000)
			t.Logf("%v in %v", f, time.Since(start).Round(time.Millisecond))
			require.NoError(t, f.broken, "after %q", c.world.story(f.trace))
			assert.True(t, f.complete)
		})
	}
}

// TestStreamsOfTheProductWalked goes at random through a link with the windows
// that links have, and everything that streams can do on it. It finds every change
// of stage that the table at Stage has, and no other.
func TestStreamsOfTheProductWalked(t *testing.T) {
	steps := 1_000_000
	switch {
	case soak:
		steps = 100_000_000
	case raceEnabled:
		steps = 30_000
	}
	w := stagedWorld{streamsOnLink(4, RecordWindow, RecordCredit, everything), map[[2]Stage]bool{}}
	require.Equal(t, LinkControlReceives, w.control)
	f := walkAtRandom(w, steps, rand.New(rand.NewPCG(1, 0)))
	require.NoError(t, f.broken, "at %v", f.trace)
	for before, all := range stageTable {
		for _, after := range all {
			require.True(t, w.seen[[2]Stage{before, after}], "%v to %v never happened", before, after)
		}
	}
	t.Logf("need %d of %d", w.need, w.data+w.control)
}

// TestStreamsChangedBreak changes the rules here and there, and expects that the
// exploration finds what each of them is for.
func TestStreamsChangedBreak(t *testing.T) {
	for _, c := range []struct {
		name   string
		mutant streamMutant
		world  *streamWorld
		want   string
	}{
		{"a ring is freed when its reader closes", freesRingAtClose, streams(3, aNumberTwice), "which is 0's|is given to|is looked for in"},
		{"a ring is freed when RESET is sent", freesRingAtReset, streams(3, aNumberTwice), "which is 0's|is given to|is looked for in"},
		{"a ring is freed at the peer's end, unread", freesRingUnread, streams(3, aNumberTwice), "is read from memory"},
		{"a ring is freed when drained, before the switch", freesRingBeforeSwitch, streams(4, growing), "which is 0's|is given to|is looked for in"},
		{"the old ring is freed at the switch, undrained", freesOldRingAtSwitch, streams(4, growing), "something else|is read from memory"},
		{"an offered ring is freed when its reader closes", freesOfferAtClose, streams(3, handingOver), "which is 0's|is given to|is looked for in"},
		{"an offered ring is kept when the stream ends", keepsOfferAtEnd, streams(3, growing), "offered and not taken|memory of"},
		{"a number is free after both ends", freesNumberAfterEnds, streams(3, aNumberTwice), "which there is not|is taken for|is in use"},
		{"a number is free before the own FINACK", freesNumberBeforeFinAck, streams(3, aNumberTwice), "which there is not|is taken for|is in use"},
		{"a number is free when the dial is given up", freesNumberGivenUp, streams(3, aNumberTwice, giveUpAndRefuse), "which there is not|is taken for|is in use"},
		{"CREDIT behind FINACK", creditsBehindFinAck, streams(3, aNumberTwice, writing(2, 0)), "CREDIT behind FINACK"},
		{"CREDIT behind RESET", creditsBehindReset, streams(3, aNumberTwice), "CREDIT behind RESET|which there is not"},
		{"RING behind RESET", offersBehindReset, streams(3, growing, everyEnd, aborting), "RING behind RESET|which there is not"},
		{"a dial given up and accepted", wantsGivenUp, streams(3, aNumberTwice, giveUpAndRefuse), "does not say that it has ended"},
		{"CREDIT for what nobody has read", creditsUnread, streams(4, growing, readingSlowly), "overwrites"},
		{"RING behind FINACK", offersBehindFinAck, streams(3, growing, everyEnd), "RING behind FINACK"},
		{"a second offer before the first is taken", offersTwice, streams(4, growingAndShrinking, memory(2, 4, 4)), "a second RING|none was offered"},
		{"a second offer before the old ring is drained", offersUndrained, streams(4, growingAndShrinking, memory(2, 4, 2)), "three rings"},
		{"RESET behind FINACK", resetsBehindFinAck, streams(3, aNumberTwice), "RESET behind FINACK|RESET for a stream|which there is not"},
		{"RESET is not answered", resetsNever, streams(3, aNumberTwice), "has reset the stream"},
		{"FINACK for FIN and for RESET", finAcksTwice, streams(3, aNumberTwice), "FINACK for no end|which there is not"},
		{"FIN before the last bytes", finsEarly, streams(3, aNumberTwice), "cannot send what|bytes have arrived"},
		{"room in both rings at once", writesToBothRings, streams(4, growing, writing(12, 0)), "overwrites"},
		{"a switch to a ring too small", switchesToTooSmall, streams(4, shrinking), "overwrites|cannot send what|has room for"},
		{"an idle sender does not answer an offer", switchesNotIdle, streams(4, growing), "offered and not taken"},
		{"a switch without its flag", switchesUnflagged, streams(4, growing), "is looked for in|data message of 0 bytes|credit ends at"},
		{"OPEN behind GOAWAY", opensBehindGoAway, streams(3, aNumberTwice, goingAway), "disconnects"},
		{"a threshold above the window", asItIs, streamsOnLink(4, 1, 2, aNumberTwice), "may never send records again"},
		{"leaving at the peer's GOAWAY", leavesAtGoAway, streams(3, aNumberTwice, goingAway), "disconnects"},
	} {
		t.Run(c.name, func(t *testing.T) {
			medium.skip(t)
			c.world.mutant = c.mutant
			f := breadthFirst(c.world, 4_000_000)
			t.Logf("%v: %v, after %q", f, f.broken, c.world.story(f.trace))
			require.Error(t, f.broken)
			assert.Regexp(t, c.want, f.broken.Error())
		})
	}
}
