package credit

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// soak asks for the explorations that take minutes and gigabytes.
var soak = os.Getenv("RINGNET_SOAK") != ""

func with(w rules, changes ...func(*rules)) rules {
	for _, change := range changes {
		change(&w)
	}
	return w
}

func twoWay(w *rules)      { w.twoWay = true }
func closes(w *rules)      { w.closes = true }
func probes(w *rules)      { w.probes = true }
func flight(w *rules)      { w.flight = true }
func freeSignals(w *rules) { w.freeSignals = true }
func eager(w *rules)       { w.eager = true }
func reduced(w *rules)     { w.reduced = true }

// size is how long an exploration takes.
type size int

const (
	small  size = iota // also with the race detector
	medium             // seconds
	large              // minutes: soak
)

func (s size) skip(t *testing.T) {
	switch {
	case s == large && !soak:
		t.Skip("set RINGNET_SOAK for this")
	case s == medium && (raceEnabled || testing.Short()):
		t.Skip("takes seconds, many with the race detector, which has nothing to find here")
	}
}

// TestNothingBreaksTheScheme visits every state of a number of small worlds and
// checks in each what the package documentation promises: no receive is ever
// missing, no ring or send queue ever too full, no ledger ever in disagreement;
// CREDITs are as rare as they should be; nothing goes on for ever without new
// bytes; and what is left when nothing goes on is a connection on which
// everything accepted has arrived, all that had to be said has been said, and
// only a reader may keep a writer waiting.
//
// need is how many receives are taken at once at most, beyond those for data.
func TestNothingBreaksTheScheme(t *testing.T) {
	for _, c := range []struct {
		name  string
		size  size
		rules rules
		need  int
	}{
		// A sends, B answers with CREDITs: no more than 8, for which A has 4
		// receives that B's data would take.
		{"one way", small, scheme(4, 4, 8), 8 - 4},
		{"one way, in flight", medium, with(scheme(4, 4, 8), flight, freeSignals), 8 - 4},
		{"one way, bytes scarce", small, scheme(4, 8, 8), 0},
		{"one way, messages scarce", large, scheme(8, 4, 8), 8 - 4},
		{"one way, thresholds above one", medium, with(scheme(8, 8, 8), reduced), 8 - 8},
		{"one way, thresholds above one, by steps", large, scheme(8, 8, 8), 8 - 8},
		{"one way, closing", medium, with(scheme(4, 4, 8), closes, reduced, eager), 8 + 3 - 4},
		{"one way, closing, send queue", medium, with(scheme(4, 4, 8), closes, reduced), 8 + 3 - 4},

		{"two ways", large, with(scheme(4, 4, 8), twoWay, reduced, eager), 8},

		{"halves", small, with(halves(6), twoWay, flight, freeSignals), 4},
		{"halves, probing", medium, with(halves(6), twoWay, flight, freeSignals, probes), 4},
		{"halves, longer queue", medium, with(halves(8), twoWay, flight, freeSignals), 4},
		{"halves, one closing", medium, with(halves(6), closes, flight), 4 + 3 - 2},
		{"halves, closing", medium, with(halves(6), twoWay, closes, reduced), 4 + 3},
		{"halves, one closing, probing", large, with(halves(6), closes, probes, reduced), 4 + 3 - 2},
		{"halves, closing, by steps", large, with(halves(6), twoWay, closes, eager), 4 + 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.size.skip(t)
			start := time.Now()
			o := explore(c.rules, 100_000_000)
			t.Logf("%v in %v", o, time.Since(start).Round(time.Millisecond))
			require.NoError(t, o.broken, "after%s", trace(o.trace))
			require.True(t, o.complete)
			require.Equal(t, c.need, o.need)
		})
	}
}

// TestStridesFindWhatStepsFind is the check on the argument for strides.
func TestStridesFindWhatStepsFind(t *testing.T) {
	for _, c := range []struct {
		name  string
		size  size
		rules rules
	}{
		{"one way", medium, scheme(4, 4, 8)},
		{"one way, bytes scarce", small, scheme(4, 8, 8)},
		{"halves, one way, probing", small, with(halves(6), probes)},
		{"halves, one closing", medium, with(halves(6), closes)},
		{"halves", medium, with(halves(6), twoWay)},
		{"halves, longer queue", medium, with(halves(8), twoWay, freeSignals)},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.size.skip(t)
			steps := explore(c.rules, 1e6)
			strides := explore(with(c.rules, reduced), 1e6)
			eagerly := explore(with(c.rules, reduced, eager), 1e6)
			for _, o := range []outcome{steps, strides, eagerly} {
				require.NoError(t, o.broken, "after%s", trace(o.trace))
				require.True(t, o.complete)
				require.Equal(t, steps.need, o.need)
			}
			t.Logf("steps: %v; strides: %v; with completions at once: %v", steps, strides, eagerly)
		})
	}
}

// TestMutantsAreFound proves that the exploration would find a fault: each of
// these schemes has one.
func TestMutantsAreFound(t *testing.T) {
	quarters := func(bytes, messages bool) func(*Receiver) bool {
		return func(r *Receiver) bool {
			return !r.outstanding && (bytes && r.consumed-r.advertised >= r.ring/4 ||
				messages && r.messages-r.advertisedMessages >= r.receives/4)
		}
	}
	leaving := func(slots int) func(*Slots) bool {
		return func(q *Slots) bool { return int(q.depth)-q.Outstanding() > slots }
	}
	for _, c := range []struct {
		name   string
		size   size
		rules  rules
		mutate func(w *rules)
		broken string
	}{
		{
			"a receive too few", medium, with(scheme(4, 4, 8), closes, reduced, eager),
			func(w *rules) { w.reserve = 8 + 3 - 4 - 1 }, "receiver not ready: 10 receives are taken",
		}, {
			"a receive too few, both ways", medium, with(halves(6), twoWay, closes, reduced, eager),
			func(w *rules) { w.reserve-- }, "receiver not ready: 8 receives are taken",
		}, {
			"receives for CREDITs only", small, with(halves(6), twoWay, closes),
			func(w *rules) { w.reserve = 1 }, "receiver not ready",
		}, {
			"receives for data only", small, with(scheme(4, 4, 8), twoWay),
			func(w *rules) { w.reserve = 0 }, "receiver not ready: 4 receives are taken",
		}, {
			"granted before posted again", small, halves(6),
			func(w *rules) { w.lateRepost, w.reserve = true, 4-2 }, "receiver not ready: 4 receives are taken",
		}, {
			"CREDIT for every message", small, scheme(8, 8, 8),
			func(w *rules) {
				w.due = func(r *Receiver) bool { return !r.outstanding && r.messages > r.advertisedMessages }
			}, "CREDIT for 0 bytes and 1 messages",
		}, {
			"CREDIT without a reason", small, scheme(4, 4, 8),
			func(w *rules) { w.due = func(r *Receiver) bool { return !r.outstanding } }, "CREDIT for 0 bytes and 0 messages",
		}, {
			"CREDIT for bytes only", small, scheme(8, 4, 8),
			func(w *rules) { w.due = quarters(true, false) }, "A waits for receives",
		}, {
			"CREDIT for messages only", small, scheme(8, 8, 8),
			func(w *rules) { w.due = quarters(false, true) }, "A has space for",
		}, {
			"CREDIT above the threshold only", small, scheme(4, 8, 8),
			func(w *rules) {
				w.due = func(r *Receiver) bool { return !r.outstanding && r.consumed-r.advertised > r.ring/4 }
			}, "A has space for",
		}, {
			"CREDIT for what nobody has read", small, scheme(4, 4, 8),
			func(w *rules) {
				w.due = func(r *Receiver) bool { return !r.outstanding && r.received-r.advertised >= r.ring/4 }
				w.advertise = func(r *Receiver) (uint64, uint64) {
					r.Advertise()
					r.advertised = r.received
					return r.received, r.messages
				}
			}, "5 bytes in a ring of 4",
		}, {
			"CREDIT while one is uncompleted", small, scheme(4, 4, 6),
			func(w *rules) {
				w.due = func(r *Receiver) bool { r.outstanding = false; return r.Due() }
			}, "more than 6 work requests outstanding",
		}, {
			"no send slots for control", medium, with(halves(6), closes),
			func(w *rules) { w.maySend = leaving(0) }, "more than 6 work requests outstanding",
		}, {
			"a send slot too few for control", large, with(halves(6), twoWay, closes, probes, reduced),
			func(w *rules) { w.maySend = leaving(ControlSends - 1) }, "more than 6 work requests outstanding",
		}, {
			"send slots freed by CREDIT", small, scheme(4, 4, 6),
			func(w *rules) { w.earlySlots = true }, "7 work requests in a send queue of 6",
		}, {
			"nothing signaled", small, scheme(4, 4, 8),
			func(w *rules) { w.signal = func(*rules, *Slots) bool { return false } }, "A waits for a completion",
		}, {
			"every fourth signaled", small, scheme(4, 4, 8),
			func(w *rules) {
				w.signal = func(_ *rules, q *Slots) bool { return q.Unsignaled()+1 >= 4 }
			}, "A waits for a completion",
		}, {
			"FIN before the last bytes", small, with(scheme(4, 4, 8), closes),
			func(w *rules) { w.earlyFin = true }, "FIN after 1 bytes, at byte 0",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.size.skip(t)
			start := time.Now()
			o := explore(with(c.rules, c.mutate), 20_000_000)
			t.Logf("%v in %v: %v, after%s", o, time.Since(start).Round(time.Millisecond), o.broken, trace(o.trace))
			require.ErrorContains(t, o.broken, c.broken)
			require.NotEmpty(t, o.trace)
		})
	}
}

// TestElevenReceivesAreNeeded is the run that takes all of ControlReceives, with
// the real scheme: B has used up all of its credit and ended its stream, and A
// all of its own, when B stops polling.
func TestElevenReceivesAreNeeded(t *testing.T) {
	run := func(reserve int) error {
		w := with(scheme(4, 4, 16), eager)
		w.reserve = reserve
		s := w.start()
		do := func(i int, ops ...op) (err error) {
			for _, o := range ops {
				if err == nil {
					err = w.do(s, action{side: i, op: o, n: 1})
				}
			}
			return err
		}
		const a, b = 0, 1
		for _, i := range []int{a, b} {
			for range 4 {
				require.NoError(t, do(i, write, sendData))
			}
			require.NoError(t, do(i, closeWrite, sendFin))
		}
		for n := range 4 {
			// Each message is worth a CREDIT when it is polled and another when
			// it is read. The last is not read: that is why A resets.
			if err := do(a, pollReceive, sendCredit); err != nil {
				return err
			}
			if n < 3 {
				if err := do(a, read, sendCredit); err != nil {
					return err
				}
			}
		}
		if err := do(a, closeAll, sendReset, sendCredit, pollReceive, sendFinAck); err != nil {
			return err
		}
		require.Equal(t, ControlReceives, w.need(s, b))
		return nil
	}
	require.NoError(t, run(ControlReceives))
	require.EqualError(t, run(ControlReceives-1), "receiver not ready: 14 receives are taken")
}

// TestRandomWalk goes a long way at random through worlds as large as real ones.
func TestRandomWalk(t *testing.T) {
	walks := 300
	switch {
	case soak:
		walks = 30_000
	case raceEnabled:
		walks = 30
	}
	for range walks {
		seed := rand.Uint64()
		if err := walk(seed, func(*rules) {}); err != nil {
			t.Fatalf("seed %#x: %v", seed, err)
		}
	}
}

// TestRandomWalkFindsMutants proves that the walk would find a fault, though it
// takes longer than an exploration.
func TestRandomWalkFindsMutants(t *testing.T) {
	for _, c := range []struct {
		name   string
		mutate func(w *rules)
		broken string
	}{
		{"no receives for control", func(w *rules) { w.reserve = 0 }, "receiver not ready"},
		{"granted before posted again", func(w *rules) { w.lateRepost = true }, "receiver not ready"},
		{"no send slots for control", func(w *rules) {
			w.maySend = func(q *Slots) bool { return q.Outstanding() < int(q.depth) }
		}, "work requests outstanding"},
		{"send slots freed by CREDIT", func(w *rules) { w.earlySlots = true }, "work requests in a send queue"},
		{"nothing signaled", func(w *rules) { w.signal = func(*rules, *Slots) bool { return false } }, "waits for a completion"},
		{"FIN before the last bytes", func(w *rules) { w.earlyFin = true }, "FIN after"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 300 {
				if err := walk(rand.Uint64(), c.mutate); err != nil && strings.Contains(err.Error(), c.broken) {
					return
				}
			}
			t.Fatal("not found")
		})
	}
}

// walk is the life of one connection.
func walk(seed uint64, mutate func(*rules)) error {
	rnd := rand.New(rand.NewPCG(seed, 0))
	pick := func(of ...int) int { return of[rnd.IntN(len(of))] }
	w := with(scheme(0, 0, pick(6, 16, 128)), twoWay, flight, freeSignals, probes, mutate)
	for i := range 2 {
		w.ring[i], w.receives[i] = pick(4, 4096, 64<<10), pick(4, 64, 256)
	}
	s := w.start()
	var credits [2]int
	step := func(act action) error {
		before := w.work(s)
		if err := w.do(s, act); err != nil {
			return fmt.Errorf("%v: %w", act, err)
		}
		if act.op >= sendData && w.work(s) >= before {
			return fmt.Errorf("%v can go on for ever", act)
		}
		if act.op == sendCredit {
			credits[act.side]++
		}
		r := &s[act.side].receiver
		bound := 4*float64(r.messages)/float64(r.receives) + 4*float64(r.consumed)/float64(r.ring)
		if n := credits[act.side]; float64(n) > bound {
			return fmt.Errorf("%d CREDITs for %d messages and %d bytes", n, r.messages, r.consumed)
		}
		return nil
	}
	var choices []action
	for phase := range 60 {
		// In every phase some things happen often, some rarely, some not at all.
		var weights [2][ops]int
		for i := range weights {
			for o := range weights[i] {
				weights[i][o] = pick(0, 1, 10, 100)
			}
		}
		w.closes = phase > 40
		for range 1 + rnd.IntN(1000) {
			choices = w.choices(s, choices[:0])
			total := 0
			for _, c := range choices {
				total += weights[c.side][c.op]
			}
			if total == 0 {
				break
			}
			at := rnd.IntN(total)
			for _, c := range choices {
				if at -= weights[c.side][c.op]; at < 0 {
					c.n = pick(min(c.n, 1), c.n, min(c.n, 1+rnd.IntN(1+c.n)))
					if err := step(c); err != nil {
						return err
					}
					break
				}
			}
		}
		if phase%4 != 3 {
			continue
		}
		// Now and then the applications pause, and progress comes to its end.
		for {
			choices = slices.DeleteFunc(w.choices(s, choices[:0]), func(c action) bool { return c.op < sendData })
			if len(choices) == 0 {
				break
			}
			if err := step(choices[rnd.IntN(len(choices))]); err != nil {
				return err
			}
		}
		if err := w.atRest(s); err != nil {
			return err
		}
	}
	return nil
}
