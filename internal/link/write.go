package link

import (
	"net"
	"os"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/ring"
)

// Write writes p, waiting until the peer has room for all of it or the deadline
// has passed. If it fails it says how many bytes it accepted before; those are
// delivered unless the link is lost. p is the caller's again when Write returns.
func (s *Stream) Write(p []byte, d *deadline.Deadline) (n int, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	for {
		m, err := s.writeSome(whole(p[n:]), d)
		n += m
		if err != nil || n == len(p) {
			return n, err
		}
	}
}

// WriteBuffers is one Write of the buffers' bytes, one behind the other. It takes
// from v what it accepts, as [net.Buffers.WriteTo] does.
func (s *Stream) WriteBuffers(v *net.Buffers, d *deadline.Deadline) (n int64, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	for {
		m, err := s.writeSome(gatherFrom(*v), d)
		consume(v, m)
		n += int64(m)
		if err != nil || len(*v) == 0 {
			return n, err
		}
	}
}

// writeSome writes some of the bytes, for which it may have to wait. Called with writing held.
func (s *Stream) writeSome(g gather, d *deadline.Deadline) (int, error) {
	s.link.lock()
	n, err := s.acceptOrWait(g, d)
	if err != nil {
		s.leaveStagingLine()
	}
	s.link.unlock()
	s.cut.mend()
	return n, err
}

// acceptOrWait is accept, or waits until some of the bytes can be accepted, or d has passed. Called with mu held,
// which it may release meanwhile.
func (s *Stream) acceptOrWait(g gather, d *deadline.Deadline) (n int, err error) {
	if d.Expired() && s.openError() == nil {
		return 0, os.ErrDeadlineExceeded
	}
	for {
		if n, err = s.accept(g); n == 0 && err == nil && g.n > 0 {
			err = s.wait(writeCall, d)
		}
		if n > 0 || err != nil || g.n == 0 {
			return n, err
		}
	}
}

// accept takes as many of the bytes as the peer has room for, one message at most. It has
// unlock send them, or queues them. Called with mu held, which it releases to copy many.
func (s *Stream) accept(g gather) (int, error) {
	l := s.link
	n, err := s.room(g.n)
	if n == 0 {
		return 0, err
	}
	if g.buffer != nil {
		s.pending.add(&l.send.staging, l.send.staging.lend(g.buffer, g.from, n))
		s.accepted(n)
		return n, nil
	}
	if n <= l.limits.Inline && s.sendNow(g.head(n)) {
		l.wakeStagingLine()
		return n, nil
	}
	if n = min(n, s.stagingRoom(n)); n == 0 {
		s.joinStagingLine()
		return 0, nil
	}
	if n <= copyLocked {
		s.pending.append(&l.send.staging, g.head(n))
		s.accepted(n)
		return n, nil
	}
	number, first, second := l.send.staging.take(n)
	l.unlock()
	testHookCopying(s)
	g.head(n).copyTo(first, second)
	l.lock()
	return s.staged(number, n)
}

// testHookCopying is for tests. It is called when a Write is about to copy, without mu.
var testHookCopying = func(*Stream) {}

// room is how many of n bytes the peer has room for, one message at most, or why there
// will be none. Called with mu held.
func (s *Stream) room(n int) (int, error) {
	if l := s.link; s.ledger.Pending() == 0 && !(l.send.slots.MaySend() && l.ledger.MaySendData()) {
		l.pollCompletions() // what is in the way may have completed; behind bytes that wait, who has the watch polls
	}
	if err := s.writeError(); err != nil {
		s.tell(err)
		return 0, err
	}
	if s.link.cause != nil {
		return 0, nil
	}
	n = min(n, s.ledger.Space(), s.chunkLen())
	return ring.Contiguous(s.ledger.Accepted(), n, s.peer.Size), nil
}

// staged accepts the n bytes that have been copied to a chunk of the staging
// memory, and returns n, unless writing has become an error meanwhile. Called with mu held.
func (s *Stream) staged(number uint64, n int) (int, error) {
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

// accepted has the stream send n bytes more of registered memory. Called with mu held.
func (s *Stream) accepted(n int) {
	s.ledger.Accept(n)
	s.queue()
}

func writeReady(s *Stream) bool {
	return s.writeError() != nil || s.link.cause == nil && s.ledger.Space() > 0 && s.line != inLine
}
