package machine

import (
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/ring"
)

// staging is the memory in which bytes wait until the device has sent them. Chunks of it go
// to all streams in the order in which they ask, and are freed in that order: each once the
// work requests that carry it have completed. A chunk is only made of bytes that have their
// place in the peer's ring, so none can stay for ever and keep those behind it from being
// freed. A chunk of a [Loan]'s bytes takes none of the memory.
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
	loan     *Loan
	from, to uint64 // positions; from moves on as bytes are posted
	sent     sent   // its last bytes that have been
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
func (s *staging) lend(b *Loan, from, n int) (number uint64) {
	b.lent++
	s.lent++
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
			s.ring.Release(c.to)
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
			if s.StagingRoom(Worthwhile) <= taken {
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
// link that others share bulk leaves a little to what is none.
func (s *Stream) StagingRoom(n int) int {
	r := s.link.send.staging.ring
	if !s.isBulk(n) || s.link.cfg.Dedicated {
		return r.Free()
	}
	return max(r.Free()-r.Size()/16, 0)
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
	return s.link.send.staging.take(n)
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
	if c.length > 0 && c.tail+1 == staging.next {
		if last := staging.chunk(c.tail); last.loan == nil && last.sent == 0 && last.to-last.from < Worthwhile {
			first, second = staging.reserve(n)
			last.to = staging.ring.Head()
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
		if next := s.chunk(number); next.from != to || next.loan != head.loan {
			break
		}
		to = s.chunk(number).to
	}
	n = min(n, int(to-head.from))
	if head.loan != nil {
		return head.loan.memory.Bytes()[head.from:][:n], head.loan.memory
	}
	return s.ring.Bytes(head.from, n), s.memory
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
