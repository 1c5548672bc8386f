package credit

import (
	"bytes"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type linkOutcome struct {
	states   int
	need     int // the most receives taken at once
	complete bool
	broken   error
	trace    []linkAction
}

// exploreLink visits every state that the rules lead to, or the first limit of
// them, breadth first, until a promise is broken.
func exploreLink(w linkRules, limit int) (o linkOutcome) {
	e := linkExplorer{linkRules: w, seed: maphash.MakeSeed(), seen: set{traced: true}}
	var frontier, next codec
	var s, t linkState
	hash, key := e.key(w.start())
	e.seen.add(hash, 0)
	next.record(key)
	for o.states = 1; len(next.buf) > 0; {
		frontier, next = next, codec{buf: frontier.buf[:0]}
		for frontier.next() {
			e.decode(&s, &frontier)
			from, _ := e.key(&s)
			resting := true
			for side := range s {
				o.need = max(o.need, len(s[side].inbox)+s[side].held)
			}
			for act := range e.choices(&s) {
				resting = resting && act.op <= sendsRecords
				t.copyFrom(&s)
				if o.broken = w.do(&t, act); o.broken != nil {
					o.trace = append(e.trace(from), act)
					return o
				}
				t.normalize()
				hash, key := e.key(&t)
				if e.seen.add(hash, from) {
					o.states++
					next.record(key)
				}
			}
			if resting {
				if o.broken = w.rest(&s); o.broken != nil {
					o.trace = e.trace(from)
					return o
				}
			}
			if o.states > limit {
				return o
			}
		}
	}
	o.complete = true
	return o
}

// walkLink takes steps at random.
func walkLink(w linkRules, steps int, r *rand.Rand) (o linkOutcome) {
	e := linkExplorer{linkRules: w}
	s := w.start()
	for range steps {
		all := slices.Collect(e.choices(s))
		act := all[r.IntN(len(all))]
		if o.broken = w.do(s, act); o.broken != nil {
			return o
		}
		s.normalize()
		for side := range s {
			o.need = max(o.need, len(s[side].inbox)+s[side].held)
		}
	}
	return o
}

func linkOneWay(w linkRules) linkRules {
	w.oneWay = true
	return w
}

func linkQueue(w linkRules, slots int) linkRules {
	w.sendQueue = slots
	return w
}

type linkExplorer struct {
	linkRules
	seed             maphash.Seed
	seen             set
	encoded, swapped codec
}

func (e *linkExplorer) choices(s *linkState) func(yield func(linkAction) bool) {
	return func(yield func(linkAction) bool) {
		for side := range s {
			for op := range linkOps {
				if act := (linkAction{side, op}); e.may(s, act) && !yield(act) {
					return
				}
			}
		}
	}
}

func (e *linkExplorer) decode(s *linkState, c *codec) {
	for i := range s {
		s[i].ledger = e.ledger()
	}
	s.code(c)
}

// key encodes s, so that states that differ by an exchange of the sides have the
// same encoding if the rules are the same for both.
func (e *linkExplorer) key(s *linkState) (uint64, []byte) {
	e.encoded.buf = e.encoded.buf[:0]
	s.code(&e.encoded)
	key := e.encoded.buf
	if !e.oneWay {
		e.swapped.buf = e.swapped.buf[:0]
		(&linkState{s[1], s[0]}).code(&e.swapped)
		if bytes.Compare(e.swapped.buf, key) < 0 {
			key = e.swapped.buf
		}
	}
	return max(1, maphash.Bytes(e.seed, key)), key
}

// trace is how the state with this hash was reached.
func (e *linkExplorer) trace(hash uint64) (path []linkAction) {
	var hashes []uint64
	for ; hash != 0; hash = e.seen.from(hash) {
		hashes = append(hashes, hash)
	}
	slices.Reverse(hashes)
	s := e.start()
	for _, want := range hashes[1:] {
		var t linkState
		for act := range e.choices(s) {
			t.copyFrom(s)
			if e.do(&t, act) != nil {
				continue
			}
			t.normalize()
			if hash, _ := e.key(&t); hash == want {
				path = append(path, act)
				break
			}
		}
		// The representative may be the mirror image; the path goes on from it.
		s = &t
	}
	return path
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
		rules linkRules
		need  int
	}{
		{"D 4, W 1, T 1, data one way", small, linkOneWay(linkWorld(4, 1, 1)), 6},
		{"D 4, W 2, T 1, data one way", medium, linkOneWay(linkWorld(4, 2, 1)), 8},
		{"D 4, W 2, T 2, data one way", medium, linkOneWay(linkWorld(4, 2, 2)), 7},
		{"D 4, W 1, T 1", medium, linkWorld(4, 1, 1), 10},
		{"D 4, W 1, T 1, send queue", medium, linkQueue(linkOneWay(linkWorld(4, 1, 1)), 2), 6},
		{"D 4, W 2, T 2", large, linkWorld(4, 2, 2), 11},
		{"D 4, W 2, T 1", large, linkWorld(4, 2, 1), 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.size.skip(t)
			o := exploreLink(c.rules, 60_000_000)
			t.Logf("%d states, need %d", o.states, o.need)
			require.NoError(t, o.broken, "after %v", o.trace)
			require.True(t, o.complete)
			assert.Equal(t, c.need, o.need)
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
	require.NoError(t, walkLink(w, 3_000_000, r).broken)
}

// TestLinkChangedBreaks changes the scheme here and there, and expects that the
// exploration finds what each part of it is for.
func TestLinkChangedBreaks(t *testing.T) {
	for _, c := range []struct {
		name   string
		rules  linkRules
		change func(*linkRules)
		want   string
	}{
		{"a receive too few", linkWorld(4, 1, 1), func(w *linkRules) { w.control-- }, "finds no receive"},
		{"receives for the window alone", linkWorld(4, 1, 1), func(w *linkRules) { w.control = 1 }, "finds no receive"},
		{"counted before posted again", linkOneWay(linkWorld(4, 1, 1)), func(w *linkRules) { w.repostLate = true }, "finds no receive"},
		{"link credit for anything", linkWorld(8, 2, 2), func(w *linkRules) { w.creditEarly = true }, "link credit for"},
		{"link credit on records only", linkWorld(4, 1, 1), func(w *linkRules) { w.creditNever = true }, "never may|may never send|never sends"},
		{"a threshold above the window", linkWorld(4, 1, 2), func(*linkRules) {}, "may never send"},
		{"data without a window", linkWorld(4, 1, 1), func(w *linkRules) { w.dataAnyTime = true }, "were granted|finds no receive"},
		{"send slots freed by the peer's word", linkQueue(linkWorld(4, 1, 1), 1), func(w *linkRules) { w.slotsByWord = true }, "in a send queue of"},
	} {
		t.Run(c.name, func(t *testing.T) {
			medium.skip(t)
			c.change(&c.rules)
			o := exploreLink(c.rules, 4_000_000)
			require.Error(t, o.broken)
			assert.Regexp(t, c.want, o.broken.Error())
		})
	}
}
