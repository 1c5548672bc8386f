package link

import (
	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/ring"
)

// staging is the memory in which bytes wait until the device has sent them. Chunks of it go
// to all streams in the order in which they ask, and are freed in that order: each once the
// work requests that carry it have completed. A chunk is only made of bytes that have their
// place in the peer's ring, so none can stay for ever and keep those behind it from being
// freed. A chunk of a [Buffer]'s bytes takes none of the memory. Guarded by Link.mu.
type staging struct {
	memory fabric.Memory
	ring   *ring.Ring
	chunks []chunk // the live ones at their numbers modulo length, a power of two
	first  uint64  // number of the oldest
	next   uint64  // number of the next
	lent   int     // live chunks of buffers
}

// chunk is the bytes of one Write in the staging memory, or of several that wrote little; or
// bytes in a buffer.
type chunk struct {
	buffer   *Buffer
	from, to uint64 // positions; from moves on as bytes are posted
	after    uint64 // work requests that have to complete before it is free
	follower uint64 // number of the next chunk of the same stream
	copying  bool   // its bytes are not all there
}

func (s *staging) chunk(n uint64) *chunk { return &s.chunks[n&uint64(len(s.chunks)-1)] }

// take makes a chunk of n bytes, at most [ring.Ring.Free].
func (s *staging) take(n int) (number uint64, first, second []byte) {
	from := s.ring.Head()
	first, second = s.reserve(n)
	return s.add(chunk{from: from, to: from + uint64(n), copying: true}), first, second
}

// lend makes a chunk of n bytes of a buffer.
func (s *staging) lend(b *Buffer, from, n int) (number uint64) {
	b.lent++
	s.lent++
	return s.add(chunk{buffer: b, from: uint64(from), to: uint64(from + n)})
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
	first, second = s.ring.Reserve(n)
	s.ring.Commit(n)
	return first, second
}

func (s *staging) grow() {
	old := *s
	s.chunks = make([]chunk, max(64, 2*len(old.chunks)))
	for n := s.first; n != s.next; n++ {
		*s.chunk(n) = *old.chunk(n)
	}
}

// release frees the chunks whose work requests have completed, up to the first for which
// that is not so, and returns whether there were any.
func (s *staging) release(slots *credit.Slots) bool {
	before := s.first
	for s.first != s.next {
		c := s.chunk(s.first)
		if c.copying || c.from != c.to || !slots.Completed(c.after) {
			break
		}
		if c.buffer != nil {
			c.buffer.unlend()
			c.buffer = nil
			s.lent--
		} else {
			s.ring.Release(c.to)
		}
		s.first++
	}
	return s.first != before
}

// freeStaging frees the staging memory that nothing uses any more, and has Writes
// woken that wait for it. Called with mu held.
func (l *Link) freeStaging() {
	if l.send.staging.release(&l.send.slots) {
		l.touchStagingLine()
	}
}

// touchStagingLine touches the streams of as many Writes as the staging memory has room for.
// Each Write that is woken either takes some memory, now or when the link has its path again,
// or finds that its ring has shrunk to what it has under way: that is released, and wakes others.
// Otherwise it calls wakeStagingLine, for those would wait for ever if nothing is under way.
// Called with mu held.
func (l *Link) touchStagingLine() {
	q := &l.send
	for taken := 0; q.stagingLine.len() > 0; {
		s := q.stagingLine.front()
		if s.line == inLine {
			if s.stagingRoom(worthwhile) <= taken {
				return
			}
			s.line = leftLine
			if writeReady(s) {
				taken += worthwhile
			}
			s.touch()
		}
		q.stagingLine.pop()
		s.line = notInLine
	}
}

// joinStagingLine enters a Write into the line for staging memory. A stream whose Write has
// left the line has its old place, so no stream has two. Called with mu held.
func (s *Stream) joinStagingLine() {
	if s.line == notInLine {
		s.link.send.stagingLine.push(s)
	}
	s.line = inLine
}

// wakeStagingLine wakes Writes that wait for staging memory. A Write that needs none after
// all calls it. Called with mu held.
func (l *Link) wakeStagingLine() {
	if l.send.stagingLine.len() > 0 {
		l.touchStagingLine()
	}
}

// leaveStagingLine ends the wait for staging memory of a Write that has failed. Called with mu held.
func (s *Stream) leaveStagingLine() {
	if s.line == inLine {
		s.line = leftLine
	}
	s.link.wakeStagingLine()
}

// stagingRoom is how much of the staging memory the stream may take now for n bytes. On a
// link that others share bulk leaves a little to what is none. Called with mu held.
func (s *Stream) stagingRoom(n int) int {
	r := s.link.send.staging.ring
	if !s.isBulk(n) || s.link.cfg.Dedicated {
		return r.Free()
	}
	return max(r.Free()-r.Size()/16, 0)
}

// dropPending forgets the bytes of the stream that are not posted. Called with
// mu held.
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

// append copies a little behind the chunks: to the last of them, if it is the last of
// all, nothing of it is posted and it is not long, or to another.
func (c *chain) append(s *staging, g gather) {
	if c.length > 0 && c.tail+1 == s.next {
		if last := s.chunk(c.tail); last.buffer == nil && last.after == 0 && last.to-last.from < worthwhile {
			g.copyTo(s.reserve(g.n))
			last.to = s.ring.Head()
			return
		}
	}
	number, first, second := s.take(g.n)
	g.copyTo(first, second)
	s.chunk(number).copying = false
	c.add(s, number)
}

// next returns the bytes that the next work request of the stream may carry: n
// at most, in one piece of memory, which it returns too.
func (c *chain) next(s *staging, n int) ([]byte, fabric.Memory) {
	head := s.chunk(c.head)
	to := head.to
	for number, left := c.head, c.length-1; left > 0 && int(to-head.from) < n; left-- {
		number = s.chunk(number).follower
		if next := s.chunk(number); next.from != to || next.buffer != head.buffer {
			break
		}
		to = s.chunk(number).to
	}
	n = min(n, int(to-head.from))
	if head.buffer != nil {
		return head.buffer.Bytes()[head.from:][:n], head.buffer.memory
	}
	return s.ring.Bytes(head.from, n), s.memory
}

// first is the chunk with the next bytes to go.
func (c *chain) first(s *staging) *chunk { return s.chunk(c.head) }

// posted records that the next n bytes go with the work requests before after.
func (c *chain) posted(s *staging, n int, after uint64) {
	for n > 0 {
		head := s.chunk(c.head)
		m := min(n, int(head.to-head.from))
		head.from += uint64(m)
		head.after = after
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
