package machine

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

type ringPiece = ring.Piece

// small are links with little to do, of which every history is played: every order of arrivals, polls and
// calls, with the queue pair lost at every step.
var small = map[string]struct {
	losses  int
	first   [2][]op
	another [2][]op
}{
	"a message there and back, and both close": {
		losses: 1,
		first:  [2][]op{{{write, 3}, {read, 0}, {closeLinger, 0}}, {{read, 0}, {write, 2}, {closeLinger, 0}}},
	},
	"three messages": {
		losses: 1,
		first:  [2][]op{{{write, 3}, {write, 100}, {write, 1}}, {{read, 0}}},
	},
	"both end their directions": {
		losses: 0,
		first:  [2][]op{{{write, 1}, {closeWrite, 0}}, {{closeWrite, 0}, {read, 0}, {read, 0}}},
	},
	"another stream, which is reset": {
		first:   [2][]op{{{write, 1}}, {}},
		another: [2][]op{{{closeNow, 0}}, {{closeLinger, 0}}},
	},
}

// TestExploreHistories plays every history of the small links, which lose RINGNET_EXPLORE_LOSSES queue pairs more. A state that has been seen is not gone on from: what it is
// made of, but for times and counters, decides what follows.
func TestExploreHistories(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("it takes minutes with the race detector, which has nothing to see: there is one goroutine")
	}
	for name, s := range small {
		t.Run(name, func(t *testing.T) {
			p := make(pool)
			begin := func() *world {
				w := newWorld(p, s.losses+variable("RINGNET_EXPLORE_LOSSES", 0), false, [2][]op{clone(s.first[0]), clone(s.first[1])})
				if s.another[0] != nil {
					w.dial([2][]op{clone(s.another[0]), clone(s.another[1])})
				}
				return w
			}
			x := &explorer{begin: begin, seen: make(map[uint64]bool), seed: maphash.MakeSeed()}
			began := time.Now()
			x.explore(nil)
			t.Logf("%d states, %d ends of histories, %d steps, %.1f million a second", len(x.seen), x.ends, x.steps, float64(x.steps)/1e6/time.Since(began).Seconds())
			require.Positive(t, x.ends)
		})
	}
}

func clone(ops []op) []op { return append([]op(nil), ops...) }

type explorer struct {
	begin func() *world
	seen  map[uint64]bool
	seed  maphash.Seed
	ends  int
	steps int
}

// explore plays a history and all that follow from it.
func (x *explorer) explore(history []step) {
	w := x.play(history)
	defer w.end()
	for {
		h := w.fingerprint(x.seed)
		if x.seen[h] {
			return
		}
		x.seen[h] = true
		next := w.steps(nil)
		if len(next) == 0 {
			break
		}
		and := func(s step) []step { return append(history[:len(history):len(history)], s) }
		last := len(next) - 1
		for _, s := range next[:last] {
			x.explore(and(s))
		}
		history = and(next[last])
		x.steps++
		x.try(w, next[last], history)
	}
	x.ends++
	if what := w.stuck(); what != "" {
		panic(fmt.Sprintf("%s, after %v", what, history))
	}
}

// play plays a history from the beginning.
func (x *explorer) play(history []step) *world {
	w := x.begin()
	for _, s := range history {
		x.steps++
		x.try(w, s, history)
	}
	return w
}

// try has a step happen, and says after which history it has failed.
func (x *explorer) try(w *world, s step, history []step) {
	defer func() {
		if r := recover(); r != nil {
			panic(fmt.Sprintf("%v, after %v", r, history))
		}
	}()
	w.do(s)
}

// fingerprint is what the world is made of, but for times, counters and what lies in memory.
func (w *world) fingerprint(seed maphash.Seed) uint64 {
	f := &fingerprint{seen: make(map[uintptr]int)}
	f.hash.SetSeed(seed)
	for _, e := range w.ends {
		f.add(reflect.ValueOf(e.m).Elem())
		for _, t := range e.streams {
			f.add(reflect.ValueOf(*t))
		}
		for _, list := range []any{e.sent, e.complete, e.broken, e.noticed, e.flushed, e.told, e.posted, e.epoch} {
			f.add(reflect.ValueOf(list))
		}
	}
	f.number(uint64(w.losses))
	return f.hash.Sum64()
}

type fingerprint struct {
	hash maphash.Hash
	seen map[uintptr]int
}

var leftOut = map[reflect.Type]bool{
	reflect.TypeFor[time.Time]():                    true,
	reflect.TypeFor[Stats]():                        true,
	reflect.TypeFor[StreamStats]():                  true,
	reflect.TypeFor[keepAlive]():                    true,
	reflect.TypeFor[Config]():                       true,
	reflect.TypeFor[ring.Piece]():                   true,
	reflect.TypeFor[ring.Arena]():                   true,
	reflect.TypeFor[alarms]():                       true,
	reflect.TypeFor[*memory]():                      true,
	reflect.TypeFor[[wire.MaxRecords]wire.Record](): true,
	reflect.TypeFor[*world]():                       true,
	reflect.TypeFor[*end]():                         true,
}

func (f *fingerprint) number(n uint64) { maphash.WriteComparable(&f.hash, n) }

func (f *fingerprint) add(v reflect.Value) {
	if leftOut[v.Type()] {
		return
	}
	// Of what is used again, what is left of before says nothing.
	switch name := v.Type().Name(); {
	case strings.HasPrefix(name, "queue["):
		f.add(v.Field(0).Slice(int(v.Field(1).Int()), v.Field(0).Len()))
		return
	case name == "retransmitQueue" || name == "staging":
		items, first, next := v.FieldByName("messages"), v.FieldByName("first").Uint(), v.FieldByName("next").Uint()
		if name == "staging" {
			items = v.FieldByName("chunks")
			f.add(v.FieldByName("areas"))
			f.add(v.FieldByName("in"))
		} else {
			f.add(v.FieldByName("again"))
		}
		for n := first; n != next; n++ {
			f.add(items.Index(int(n & uint64(items.Len()-1))))
		}
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			f.number(1)
		} else {
			f.number(0)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		f.number(uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		f.number(v.Uint())
	case reflect.String:
		f.hash.WriteString(v.String())
	case reflect.Pointer:
		if v.IsNil() {
			f.number(0)
			return
		}
		n, seen := f.seen[v.Pointer()]
		if !seen {
			n = len(f.seen) + 1
			f.seen[v.Pointer()] = n
		}
		f.number(uint64(n))
		if !seen {
			f.add(v.Elem())
		}
	case reflect.Slice:
		f.number(uint64(v.Len()))
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		for i := range v.Len() {
			f.add(v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			f.add(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f.add(v.Field(i))
		}
	case reflect.Map:
		f.number(uint64(v.Len()))
	}
}

// TestExploreAtRandom plays long histories of links with many streams, of which losses, alarms and growing rings are a
// part. RINGNET_EXPLORE_WORLDS is how many, and RINGNET_EXPLORE_SEED what the first is drawn from.
func TestExploreAtRandom(t *testing.T) {
	first, worlds := variable("RINGNET_EXPLORE_SEED", 1), variable("RINGNET_EXPLORE_WORLDS", 20_000)
	if raceEnabled || testing.Short() {
		worlds /= 20
	}
	p, steps, began := make(pool), 0, time.Now()
	for seed := range worlds {
		steps += playAtRandom(p, uint64(first+seed))
	}
	t.Logf("%d steps, %.2f million a second", steps, float64(steps)/1e6/time.Since(began).Seconds())
}

func variable(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// playAtRandom plays one history, and returns how many steps it had.
func playAtRandom(p pool, seed uint64) (steps int) {
	r := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(p, r.IntN(6), r.IntN(2) == 0, [2][]op{script(r), script(r)})
	defer func() {
		if what := recover(); what != nil {
			panic(fmt.Sprintf("RINGNET_EXPLORE_SEED=%d, step %d: %v", seed, steps, what))
		}
	}()
	more := r.IntN(8)
	var next []step
	for ; steps < 20_000; steps++ {
		if more > 0 && r.IntN(20) == 0 && w.ends[0].m.MayOpen() == nil {
			more--
			w.ends[0].m.Begin()
			w.dial([2][]op{script(r), script(r)})
		}
		next = w.steps(next[:0])
		if len(next) == 0 && more == 0 {
			break
		}
		if len(next) > 0 {
			w.do(next[r.IntN(len(next))])
		}
		if r.IntN(1000) == 0 {
			w.alarm(r.IntN(2))
		}
	}
	if what := w.stuck(); what != "" {
		panic(what)
	}
	w.end()
	return steps
}

// alarm lets time pass until the next alarm of an end.
func (w *world) alarm(end int) {
	if at := w.ends[end].m.NextAlarm(); !at.IsZero() && at.Sub(w.now) < time.Minute {
		w.now = later(w.now, at)
		w.do(step{tick, end, 0})
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// script is what an application does with an end of a stream: it reads between its writes.
func script(r *rand.Rand) (ops []op) {
	for range r.IntN(30) {
		if r.IntN(2) == 0 {
			ops = append(ops, op{write, 1 + r.IntN(1<<r.IntN(15))})
		} else {
			ops = append(ops, op{read, 0})
		}
	}
	switch r.IntN(4) {
	case 0:
		ops = append(ops, op{closeNow, 0})
	case 1:
		ops = append(ops, op{closeLinger, 0})
	case 2:
		ops = append(ops, op{closeWrite, 0}, op{read, 0}, op{read, 0}, op{closeLinger, 0})
	}
	return ops
}
