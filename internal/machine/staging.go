package machine

import (
	"slices"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/ring"
)

// staging is the memory in which bytes wait until the device has sent them. Chunks of it go
// to all streams in the order in which they ask, and are freed in that order: each once the
// work requests that carry it have completed. A chunk is only made of bytes that have their
// place in the peer's ring, so none can stay for ever and keep those behind it from being
// freed. A chunk of a [Loan]'s bytes takes none of the memory.
//
// A Write that finds none free has the memory grow, as rings do: what is staged from then on goes
// to a larger area, until that has lain idle.
type staging struct {
	areas      []*area   // the first stays, with the control messages behind it
	in         *area     // of what is staged next
	growing    int       // size of the area that is to be registered; 0: none is
	tried      time.Time // when one was wanted last
	used       time.Time // when anything was staged last, but in the first area
	headAtTick uint64    // of in, at the last shrinkTick

	chunks   []chunk // the live ones at their numbers modulo length, a power of two
	first    uint64  // number of the oldest
	next     uint64  // number of the next
	lent     int     // live chunks of buffers
	lastLent uint64  // number of the last of those
}

// area is registered memory with bytes in the order in which they were staged there.
type area struct {
	memory fabric.Memory
	ring   *ring.Ring
}

func newStaging(memory fabric.Memory, size int) staging {
	first := &area{memory, ring.New(memory.Bytes()[:size])}
	return staging{areas: []*area{first}, in: first}
}

// grown reports whether the staging memory is larger than at first.
func (s *staging) grown() bool { return s.in != s.areas[0] }

// chunk is the bytes of one Write in the staging memory, or of several that wrote little; or
// bytes in a buffer.
type chunk struct {
	in       *area  // nil: of a buffer
	loan     *Loan  // nil: of the staging memory
	from, to uint64 // positions; from moves on as bytes are posted
	sent     sent   // its last bytes that have been
	follower uint64 // number of the next chunk of the same stream
	copying  bool   // its bytes are not all there
}

func (s *staging) chunk(n uint64) *chunk { return &s.chunks[n&uint64(len(s.chunks)-1)] }

// take makes a chunk of n bytes, at most [ring.Ring.Free].
func (s *staging) take(n int) (number uint64, first, second []byte) {
	from := s.in.ring.Head()
	first, second = s.reserve(n)
	return s.add(chunk{in: s.in, from: from, to: from + uint64(n), copying: true}), first, second
}

// lend makes a chunk of n bytes of a buffer.
func (s *staging) lend(b *Loan, from, n int) (number uint64) {
	b.lent++
	s.lent++
	s.lastLent = s.next
	return s.add(chunk{loan: b, from: uint64(from), to: uint64(from + n)})
}

func (s *staging) add(c chunk) (number uint64) {
	if int(s.next-s.first) == len(s.chunks) {
		s.grow()
	}
	number = s.next
	s.next++
	*s.chunk(number) = c
	return number
}

func (s *staging) reserve(n int) (first, second []byte) {
	first, second = s.in.ring.Reserve(n)
	s.in.ring.Commit(n)
	return first, second
}

func (s *staging) grow() {
	old := *s
	s.chunks = make([]chunk, max(64, 2*len(old.chunks)))
	for n := s.first; n != s.next; n++ {
		*s.chunk(n) = *old.chunk(n)
	}
}

// freeStaging frees the chunks whose work requests have completed, up to the first for which that is not so, and
// has Writes look that wait for such memory.
func (l *Link) freeStaging() {
	s := &l.send.staging
	before := s.first
	for s.first != s.next {
		c := s.chunk(s.first)
		if c.copying || c.from != c.to || c.sent != 0 && !c.sent.completed(&l.send.slots) {
			break
		}
		if c.loan != nil {
			l.unlend(c.loan)
			c.loan = nil
			s.lent--
		} else {
			c.in.ring.Release(c.to)
			c.in = nil
		}
		s.first++
	}
	if s.first != before {
		l.touchStagingLine()
	}
}

// touchStagingLine touches the streams of as many Writes as the staging memory has room for.
// Each Write that is woken either takes some memory, now or when the link has its path again,
// or finds that its ring has shrunk to what it has under way: that is released, and wakes others.
// Otherwise it calls wakeStagingLine, for those would wait for ever if nothing is under way.
func (l *Link) touchStagingLine() {
	q := &l.send
	for taken := 0; q.stagingLine.Len() > 0; {
		s := q.stagingLine.front()
		if s.line == inLine {
			if s.stagingFree(Worthwhile) <= taken {
				return
			}
			s.line = leftLine
			if s.WriteReady() {
				taken += Worthwhile
			}
			s.touch()
		}
		q.stagingLine.Pop()
		s.line = notInLine
	}
}

// JoinStagingLine enters a Write into the line for staging memory. A stream whose Write has
// left the line has its old place, so no stream has two.
func (s *Stream) JoinStagingLine() {
	if s.line == notInLine {
		s.link.send.stagingLine.push(s)
	}
	s.line = inLine
	s.link.growStaging()
}

// wakeStagingLine wakes Writes that wait for staging memory. A Write that needs none after
// all calls it.
func (l *Link) wakeStagingLine() {
	if l.send.stagingLine.Len() > 0 {
		l.touchStagingLine()
	}
}

// QuitStagingLine ends the wait for staging memory of a Write that has failed.
func (s *Stream) QuitStagingLine() {
	if s.line == inLine {
		s.line = leftLine
	}
	s.link.wakeStagingLine()
}

// StagingRoom is how much of the staging memory the stream may take now for n bytes. On a
// link that others share bulk leaves a little to what is none, and takes a quarter at a time: while that is sent the
// next can be copied.
func (s *Stream) StagingRoom(n int) int {
	free := s.stagingFree(n)
	if s.isBulk(n) {
		free = min(free, s.link.send.staging.in.ring.Size()/4)
	}
	return free
}

// stagingFree is how much of the staging memory is free for n bytes of the stream.
func (s *Stream) stagingFree(n int) int {
	r := s.link.send.staging.in.ring
	if !s.isBulk(n) || s.link.cfg.Dedicated {
		return r.Free()
	}
	return max(r.Free()-r.Size()/16, 0)
}

// growStaging has a larger area registered, SendBuffer at most, unless memory was short a moment ago.
func (l *Link) growStaging() {
	s := &l.send.staging
	size := min(growth*s.in.ring.Size(), l.cfg.SendBuffer)
	if s.growing > 0 || size <= s.in.ring.Size() || l.stage != Up || l.since(s.tried) < Unused {
		return
	}
	s.growing, s.tried = size, l.now()
	l.StagingFull, l.More = true, true
}

// StagingGrows is the size of the area that the staging memory is to grow by, or 0.
func (l *Link) StagingGrows() int { return l.send.staging.growing }

// GrowStaging has what is staged from now on go to memory that has been registered for that; nil: there is none.
func (l *Link) GrowStaging(memory fabric.Memory, size int) {
	s := &l.send.staging
	s.growing = 0
	if memory == nil {
		return
	}
	s.in = &area{memory, ring.New(memory.Bytes()[:size])}
	s.areas = append(s.areas, s.in)
	s.tried, s.used = time.Time{}, l.now()
	l.touchStagingLine()
	l.ShrinkLater()
}

// shrinkStaging has what is staged from now on go to the first area, and returns how many bytes that will free. A probe
// completes what was not signaled.
func (l *Link) shrinkStaging() (freed int) {
	s := &l.send.staging
	for _, a := range s.areas[1:] {
		freed += a.ring.Size()
		l.alive.due = l.alive.due || a.ring.Len() > 0
	}
	s.in = s.areas[0]
	return freed
}

// StagingMemory is all of the staging memory.
func (l *Link) StagingMemory() (all []fabric.Memory) {
	for _, a := range l.send.staging.areas {
		all = append(all, a.memory)
	}
	return all
}

// TakeStaging takes an area out that holds nothing and is of no use any more, for its caller to free; nil: there is none.
func (l *Link) TakeStaging() (memory fabric.Memory, size int) {
	s := &l.send.staging
	for i, a := range s.areas {
		if i > 0 && a != s.in && a.ring.Len() == 0 {
			s.areas = slices.Delete(s.areas, i, i+1)
			return a.memory, a.ring.Size()
		}
	}
	return nil, 0
}

// dropPending forgets the bytes of the stream that are not posted.
func (s *Stream) dropPending() {
	s.pending.drop(&s.link.send.staging)
	s.link.freeStaging()
}

// chain is the chunks of a stream that are not all posted, the oldest first.
type chain struct {
	head, tail uint64 // numbers; meaningless if there is none
	length     int
}

func (c *chain) add(s *staging, number uint64) {
	if c.length == 0 {
		c.head = number
	} else {
		s.chunk(c.tail).follower = number
	}
	c.tail = number
	c.length++
}

// Stage takes n bytes of the staging memory, which are then copied there, and accepted: see Staged.
func (s *Stream) Stage(n int) (number uint64, first, second []byte) {
	s.link.useStaging()
	return s.link.send.staging.take(n)
}

// useStaging notes that the staging memory is in use, if it has grown, and so could be given back.
func (l *Link) useStaging() {
	if s := &l.send.staging; s.grown() {
		s.used = l.now()
	}
}

// Staged accepts the n bytes that have been copied to what Stage has taken, and returns n, unless
// writing has become an error meanwhile.
func (s *Stream) Staged(number uint64, n int) (int, error) {
	l := s.link
	c := l.send.staging.chunk(number)
	c.copying = false
	err := s.writeError()
	if err != nil || s.ledger.Space() < n {
		s.tell(err)
		c.from = c.to
		l.freeStaging()
		return 0, err
	}
	s.pending.add(&l.send.staging, number)
	s.accepted(n)
	return n, nil
}

// Append accepts n bytes, which its caller copies to where it says before anything else: behind the last chunk, if
// it is the last of all, nothing of it is posted and it is not long, or to another.
func (s *Stream) Append(n int) (first, second []byte) {
	c, staging := &s.pending, &s.link.send.staging
	s.link.useStaging()
	if c.length > 0 && c.tail+1 == staging.next {
		if last := staging.chunk(c.tail); last.in == staging.in && last.sent == 0 && last.to-last.from < Worthwhile {
			first, second = staging.reserve(n)
			last.to = staging.in.ring.Head()
			s.accepted(n)
			return first, second
		}
	}
	number, first, second := staging.take(n)
	staging.chunk(number).copying = false
	c.add(staging, number)
	s.accepted(n)
	return first, second
}

// next returns the bytes that the next work request of the stream may carry: n
// at most, in one piece of memory, which it returns too.
func (c *chain) next(s *staging, n int) ([]byte, fabric.Memory) {
	head := s.chunk(c.head)
	to := head.to
	for number, left := c.head, c.length-1; left > 0 && int(to-head.from) < n; left-- {
		number = s.chunk(number).follower
		if next := s.chunk(number); next.from != to || next.in != head.in || next.loan != head.loan {
			break
		}
		to = s.chunk(number).to
	}
	n = min(n, int(to-head.from))
	if head.loan != nil {
		return head.loan.memory.Bytes()[head.from:][:n], head.loan.memory
	}
	return head.in.ring.Bytes(head.from, n), head.in.memory
}

// first is the chunk with the next bytes to go.
func (c *chain) first(s *staging) *chunk { return s.chunk(c.head) }

// posted records that the next n bytes go with a work request.
func (c *chain) posted(s *staging, n int, with sent) {
	for n > 0 {
		head := s.chunk(c.head)
		m := min(n, int(head.to-head.from))
		head.from += uint64(m)
		head.sent = with
		n -= m
		if head.from == head.to {
			c.head = head.follower
			c.length--
		}
	}
}

// drop forgets the chunks: their bytes are not sent.
func (c *chain) drop(s *staging) {
	for ; c.length > 0; c.length-- {
		head := s.chunk(c.head)
		head.from = head.to
		c.head = head.follower
	}
}
