package credit

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
)

// outcome is what an exploration has found.
type outcome struct {
	states   int // that differ other than by an exchange of the two sides
	steps    int // from a state to the next
	depth    int // of the state farthest from the start
	need     int // the most receives taken at once, beyond those for data
	complete bool

	broken error // the promise that was broken, if one was
	trace  []action
}

func (o outcome) String() string {
	return fmt.Sprintf("%d states, %d steps, depth %d, need %d", o.states, o.steps, o.depth, o.need)
}

// explore visits every state that the rules lead to, or the first limit of
// them, breadth first, until a promise is broken. Only then it does so again and
// keeps what a trace takes.
func explore(w rules, limit int) outcome {
	e := schemeExplorer{rules: w}
	o := e.run(limit)
	if o.broken != nil {
		e = schemeExplorer{rules: w, seen: set{traced: true}}
		o = e.run(limit)
	}
	return o
}

type schemeExplorer struct {
	rules
	seen set
	seed maphash.Seed

	encoded, swapped codec
	stride           stride
	t                state
	acts             []action
}

func (e *schemeExplorer) run(limit int) (o outcome) {
	e.seed = maphash.MakeSeed()
	e.stride.rules = &e.rules
	var frontier, next codec
	var s state

	s.copyFrom(e.start())
	hash, key := e.key(&s)
	e.seen.add(hash, 0)
	next.record(key)
	for o.states = 1; len(next.buf) > 0; o.depth++ {
		frontier, next = next, codec{buf: frontier.buf[:0]}
		for frontier.next() {
			s.code(&frontier)
			from, _ := e.key(&s)
			o.need = max(o.need, e.need(&s, 0), e.need(&s, 1))
			o.broken = e.rest(&s)
			e.visit(&s, func(t *state, by []action, err error) {
				o.steps++
				if err != nil {
					o.broken = err
					return
				}
				t.normalize()
				hash, key := e.key(t)
				if e.seen.add(hash, from) {
					o.states++
					next.record(key)
				}
			})
			if o.broken != nil {
				o.trace = e.trace(from)
				return o
			}
			if o.states > limit {
				return o
			}
		}
	}
	o.complete = true
	return o
}

// visit passes on every state that can come after s.
func (e *schemeExplorer) visit(s *state, found func(t *state, acts []action, err error)) {
	if e.reduced {
		e.stride.from(s, found)
		return
	}
	work := e.work(s)
	e.acts = e.choices(s, e.acts[:0])
	for _, c := range e.acts {
		sizes := 1
		if c.op == sendData {
			sizes = c.n
		}
		for c.n = 1; c.n <= sizes; c.n++ {
			e.t.copyFrom(s)
			err := e.do(&e.t, c)
			if err == nil && (c.op >= sendData || c.op == read) && e.work(&e.t) >= work {
				err = fmt.Errorf("this can go on for ever")
			}
			found(&e.t, []action{c}, err)
		}
	}
}

// rest says what is wrong with s if no progress is possible.
func (e *schemeExplorer) rest(s *state) error {
	if e.reduced {
		e.t.copyFrom(s)
		if err := e.drain(&e.t); err != nil {
			return err
		}
		s = &e.t
	}
	e.acts = e.choices(s, e.acts[:0])
	for _, c := range e.acts {
		if c.op >= sendData {
			return nil
		}
	}
	return e.atRest(s)
}

// key encodes s, so that states that differ by an exchange of the sides have
// the same encoding and hash if the rules are the same for both. Two states out
// of ten million have the same hash of 64 bits with a probability of 3 in a
// million, and then one of them is missed.
func (e *schemeExplorer) key(s *state) (uint64, []byte) {
	e.encoded.buf = e.encoded.buf[:0]
	s.code(&e.encoded)
	key := e.encoded.buf
	if e.twoWay {
		e.swapped.buf = e.swapped.buf[:0]
		s[0], s[1] = s[1], s[0]
		s.code(&e.swapped)
		s[0], s[1] = s[1], s[0]
		if bytes.Compare(e.swapped.buf, key) < 0 {
			key = e.swapped.buf
		}
	}
	return max(1, maphash.Bytes(e.seed, key)), key
}

// trace is how the state with this hash was reached and what broke then.
func (e *schemeExplorer) trace(hash uint64) (path []action) {
	if !e.seen.traced {
		return nil
	}
	var hashes []uint64
	for hash != 0 {
		hashes = append(hashes, hash)
		hash = e.seen.from(hash)
	}
	slices.Reverse(hashes)
	s, next := e.start(), new(state)
	for _, want := range append(hashes[1:], 0) {
		var step []action
		e.visit(s, func(t *state, by []action, err error) {
			if err == nil {
				t.normalize()
			}
			hash, _ := e.key(t)
			if err != nil && want == 0 || err == nil && hash == want {
				step = slices.Clone(by)
				next.copyFrom(t)
			}
		})
		path = append(path, step...)
		s.copyFrom(next)
	}
	return path
}

func (s *state) code(c *codec) {
	for i := range s {
		s[i].code(c)
	}
}

func (a *side) code(c *codec) {
	number(c, &a.sender.accepted)
	number(c, &a.sender.sent)
	number(c, &a.sender.consumed)
	number(c, &a.sender.messages)
	number(c, &a.receiver.received)
	number(c, &a.receiver.messages)
	number(c, &a.receiver.consumed)
	number(c, &a.receiver.advertised)
	number(c, &a.receiver.advertisedMessages)
	number(c, &a.said.bytes)
	number(c, &a.said.messages)
	number(c, &a.slots.posted)
	number(c, &a.slots.signaled)
	number(c, &a.flying)
	number(c, &a.held)
	flags(c, &a.receiver.outstanding, &a.closed, &a.finWanted, &a.finSent, &a.resetWanted, &a.resetSent,
		&a.finAckWanted, &a.finAckSent, &a.finAcked, &a.ended)
	list(c, &a.sendQueue)
	for i := range a.sendQueue {
		number(c, &a.sendQueue[i].kind)
		flags(c, &a.sendQueue[i].signaled)
	}
	list(c, &a.inbox)
	for i := range a.inbox {
		number(c, &a.inbox[i].kind)
		number(c, &a.inbox[i].bytes)
		number(c, &a.inbox[i].messages)
	}
}

// list encodes how many elements *p has, and makes it have as many.
func list[T any](c *codec, p *[]T) {
	n := len(*p)
	number(c, &n)
	*p = slices.Grow((*p)[:0], n)[:n]
}
