package link

import (
	"net"
	"os"

	"github.com/ringnet/ringnet/internal/deadline"
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
		s.m.QuitStagingLine()
	}
	s.link.unlock()
	s.cut.mend()
	return n, err
}

// acceptOrWait is accept, or waits until some of the bytes can be accepted, or d has passed. It may release mu
// meanwhile.
func (s *Stream) acceptOrWait(g gather, d *deadline.Deadline) (n int, err error) {
	if d.Expired() && s.m.Owned() == nil {
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
// unlock send them, or queues them. It releases mu to copy many.
func (s *Stream) accept(g gather) (int, error) {
	l := s.link
	if s.m.NeedsRoom() {
		l.pollCompletions()
	}
	n, err := s.m.Room(g.n)
	if n == 0 {
		return 0, err
	}
	if g.loan != nil {
		s.m.AcceptLent(g.loan, g.from, n)
		return n, nil
	}
	if called := l.watch.called || l.m.Called; !called && s.m.MaySendNow(n) { // else the engine has others to send first
		g = g.head(n)
		s.cut = g.trim()
		s.m.SendNow(n, g.first, g.rest)
		return n, nil
	}
	if n = min(n, s.m.StagingRoom(n)); n == 0 {
		s.m.JoinStagingLine()
		return 0, nil
	}
	if n <= copyLocked {
		g.head(n).copyTo(s.m.Append(n))
		return n, nil
	}
	number, first, second := s.m.Stage(n)
	l.unlock()
	testHookCopying(s)
	g.head(n).copyTo(first, second)
	l.lock()
	return s.m.Staged(number, n)
}

// testHookCopying is for tests. It is called when a Write is about to copy, without mu.
var testHookCopying = func(*Stream) {}
