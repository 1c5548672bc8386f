package credit

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
)

// world is a system of states S, from one to the next of which actions A lead.
// S has no pointers.
type world[S any, A comparable] interface {
	start() *S

	// choices passes on what can happen in s, and whether that is progress, which
	// comes sooner or later whatever the applications do.
	choices(s *S, found func(act A, progress bool))

	// do has act happen in s. An error is the promise that it breaks.
	do(s *S, act A) error

	// rest says what is wrong with s, in which no progress is possible.
	rest(s *S) error

	// code writes the representative of all states that are like s, or reads one.
	code(s *S, c *codec)
}

// findings are what an exploration has found.
type findings[A any] struct {
	states   int // that are not alike
	steps    int // from a state to the next
	depth    int // of the state farthest from the start, on the way taken there
	complete bool

	broken error // the promise that was broken, if one was
	trace  []A   // how
}

func (f findings[A]) String() string {
	return fmt.Sprintf("%d states, %d steps, depth %d", f.states, f.steps, f.depth)
}

// explorer visits states. Two out of ten million have the same hash of 64 bits
// with a probability of 3 in a million, and then one of them is missed.
type explorer[S any, A comparable] struct {
	world world[S, A]
	found findings[A]
	seen  set
	seed  maphash.Seed
	coded codec
}

func newExplorer[S any, A comparable](w world[S, A]) *explorer[S, A] {
	return &explorer[S, A]{world: w, seed: maphash.MakeSeed()}
}

// key encodes s.
func (e *explorer[S, A]) key(s *S) (hash uint64, key []byte) {
	e.coded.buf = e.coded.buf[:0]
	e.world.code(s, &e.coded)
	return max(1, maphash.Bytes(e.seed, e.coded.buf)), e.coded.buf
}

// breadthFirst visits every state, or the first limit of them, those nearest to
// the start first, until a promise is broken. Only then it does so again and
// keeps what a trace takes, which is as short as can be.
func breadthFirst[S any, A comparable](w world[S, A], limit int) findings[A] {
	e := newExplorer(w)
	e.breadthFirst(limit)
	if e.found.broken != nil {
		e = newExplorer(w)
		e.seen.traced = true
		e.breadthFirst(limit)
	}
	return e.found
}

func (e *explorer[S, A]) breadthFirst(limit int) {
	f := &e.found
	var layer, next codec
	hash, key := e.key(e.world.start())
	e.seen.add(hash, 0)
	next.record(key)
	s, t := new(S), new(S)
	for f.states = 1; len(next.buf) > 0; f.depth++ {
		layer, next = next, codec{buf: layer.buf[:0]}
		for layer.next() {
			e.world.code(s, &layer)
			from, _ := e.key(s)
			resting := true
			e.world.choices(s, func(act A, progress bool) {
				if f.broken != nil {
					return
				}
				f.steps++
				resting = resting && !progress
				*t = *s
				if f.broken = e.world.do(t, act); f.broken != nil {
					f.trace = append(e.path(from), act)
					return
				}
				hash, key := e.key(t)
				if e.seen.add(hash, from) {
					f.states++
					next.record(key)
				}
			})
			if resting && f.broken == nil {
				if f.broken = e.world.rest(s); f.broken != nil {
					f.trace = e.path(from)
				}
			}
			if f.broken != nil || f.states > limit {
				return
			}
		}
	}
	f.complete = true
}

// path is how the state with this hash was reached.
func (e *explorer[S, A]) path(hash uint64) (path []A) {
	if !e.seen.traced {
		return nil
	}
	var hashes []uint64
	for ; hash != 0; hash = e.seen.from(hash) {
		hashes = append(hashes, hash)
	}
	slices.Reverse(hashes)
	s, t := e.world.start(), new(S)
	for _, want := range hashes[1:] {
		var step A
		var representative codec
		e.world.choices(s, func(act A, _ bool) {
			*t = *s
			if e.world.do(t, act) != nil {
				return
			}
			if hash, key := e.key(t); hash == want {
				step, representative.buf = act, slices.Clone(key)
			}
		})
		path = append(path, step)
		representative.reading = true
		e.world.code(s, &representative)
	}
	return path
}

// depthFirst visits every state of a world that comes to its end whatever
// happens, or the first limit of them. It sees if something can go on for ever.
func depthFirst[S any, A comparable](w world[S, A], limit int) findings[A] {
	e := newExplorer(w)
	e.depthFirst(limit)
	return e.found
}

// visited is a state on the way from the start to the one that is visited.
type visited[S, A any] struct {
	state S
	hash  uint64
	acts  []A // the choices there
	next  int // of acts
}

func (e *explorer[S, A]) depthFirst(limit int) {
	f := &e.found
	way := make([]*visited[S, A], 0, 1000)
	onWay := map[uint64]bool{}
	push := func(s *S, hash uint64) {
		if len(way) == cap(way) {
			way = slices.Grow(way, 1000)
		}
		way = way[:len(way)+1]
		last := &way[len(way)-1]
		if *last == nil {
			*last = new(visited[S, A])
		}
		v := *last
		v.state, v.hash, v.acts, v.next = *s, hash, v.acts[:0], 0
		onWay[hash] = true
		f.states++
		f.depth = max(f.depth, len(way))
		resting := true
		e.world.choices(&v.state, func(act A, progress bool) {
			v.acts = append(v.acts, act)
			resting = resting && !progress
		})
		if resting {
			f.broken = e.world.rest(&v.state)
		}
	}
	t := e.world.start()
	hash, _ := e.key(t)
	e.seen.add(hash, 0)
	push(t, hash)
	for len(way) > 0 && f.broken == nil && f.states <= limit {
		v := way[len(way)-1]
		if v.next == len(v.acts) {
			delete(onWay, v.hash)
			way = way[:len(way)-1]
			continue
		}
		act := v.acts[v.next]
		v.next++
		f.steps++
		*t = v.state
		if f.broken = e.world.do(t, act); f.broken != nil {
			break
		}
		hash, _ := e.key(t)
		switch {
		case e.seen.add(hash, 0):
			push(t, hash)
		case onWay[hash]:
			f.broken = fmt.Errorf("this can go on for ever")
		}
	}
	f.complete = len(way) == 0
	for _, v := range way {
		if v.next > 0 {
			f.trace = append(f.trace, v.acts[v.next-1])
		}
	}
}

// walkAtRandom takes steps through a world whose states are too many to visit.
// In every phase some things happen often, some rarely and some not at all, and
// at its end there is nothing but progress until none is possible.
func walkAtRandom[S any, A comparable](w world[S, A], steps int, rnd *rand.Rand) (f findings[A]) {
	type choice struct {
		act      A
		progress bool
	}
	s := w.start()
	var choices []choice
	weights := map[A]int{}
	resting := false
	for ; f.steps < steps; f.steps++ {
		switch f.steps % 500 {
		case 0:
			clear(weights)
			resting = false
		case 400:
			resting = true
		}
		choices = choices[:0]
		w.choices(s, func(act A, progress bool) {
			if progress || !resting {
				choices = append(choices, choice{act, progress})
			}
		})
		if len(choices) == 0 {
			if f.broken = w.rest(s); f.broken != nil {
				return f
			}
			resting = false
			continue
		}
		total := 0
		for _, c := range choices {
			if _, ok := weights[c.act]; !ok {
				weights[c.act] = [...]int{0, 1, 10, 100}[rnd.IntN(4)]
			}
			total += weights[c.act]
		}
		if total == 0 {
			clear(weights)
			continue
		}
		at := rnd.IntN(total)
		for _, c := range choices {
			if at -= weights[c.act]; at >= 0 {
				continue
			}
			if f.broken = w.do(s, c.act); f.broken != nil {
				f.trace = []A{c.act}
				return f
			}
			break
		}
	}
	f.complete = true
	return f
}

// queue is what waits in order.
type queue[T any] struct {
	n  int
	at [20]T
}

func (q *queue[T]) push(v T) {
	q.at[q.n] = v
	q.n++
}

func (q *queue[T]) pop() T {
	v := q.at[0]
	copy(q.at[:], q.at[1:q.n])
	q.n--
	var none T
	q.at[q.n] = none
	return v
}

func (q *queue[T]) all() []T { return q.at[:q.n] }

func (q *queue[T]) code(c *codec, each func(*T)) {
	number(c, &q.n)
	for i := range q.all() {
		each(&q.at[i])
	}
}

// codec writes a state's numbers to buf, or reads them from it. All are small,
// and none is negative unless the scheme is wrong.
type codec struct {
	buf     []byte
	at      int
	reading bool
}

// record appends an encoded state.
func (c *codec) record(key []byte) { c.buf = append(c.buf, key...) }

// next goes on to the next of the recorded states, if there is one.
func (c *codec) next() bool {
	c.reading = true
	return c.at < len(c.buf)
}

func number[T ~int | ~uint8 | ~uint64](c *codec, p *T) {
	if c.reading {
		*p = T(int8(c.buf[c.at]))
		c.at++
		return
	}
	if T(int8(*p)) != *p {
		panic("a number that does not fit a byte")
	}
	c.buf = append(c.buf, byte(*p))
}

func flags(c *codec, ps ...*bool) {
	var b uint16
	for i, p := range ps {
		if *p {
			b |= 1 << i
		}
	}
	low, high := uint8(b), uint8(b>>8)
	number(c, &low)
	number(c, &high)
	for i, p := range ps {
		*p = (uint16(low)|uint16(high)<<8)>>i&1 != 0
	}
}

// set is a set of hashes other than 0: open addressing, half empty at least.
type set struct {
	traced  bool
	hashes  []uint64 // 0 where empty
	parents []uint64 // if traced
	count   int
}

// add reports whether h is new.
func (s *set) add(h, parent uint64) bool {
	if 2*s.count >= len(s.hashes) {
		s.grow()
	}
	i := s.find(h)
	if s.hashes[i] != 0 {
		return false
	}
	s.hashes[i] = h
	if s.traced {
		s.parents[i] = parent
	}
	s.count++
	return true
}

// from is the parent of h.
func (s *set) from(h uint64) uint64 { return s.parents[s.find(h)] }

// find is where h is, or belongs.
func (s *set) find(h uint64) int {
	mask := len(s.hashes) - 1
	i := int(h) & mask
	for s.hashes[i] != 0 && s.hashes[i] != h {
		i = (i + 1) & mask
	}
	return i
}

func (s *set) grow() {
	old := *s
	s.hashes = make([]uint64, max(1<<16, 2*len(old.hashes)))
	if s.traced {
		s.parents = make([]uint64, len(s.hashes))
	}
	for i, h := range old.hashes {
		if h != 0 {
			at := s.find(h)
			s.hashes[at] = h
			if s.traced {
				s.parents[at] = old.parents[i]
			}
		}
	}
}
