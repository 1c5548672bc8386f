package link

import (
	"bufio"
	"math"
	"os"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
)

// Peek returns the next n bytes where they lie in the ring, without taking them,
// waiting for them until the deadline. If fewer have arrived in one piece, it returns those,
// and the error says why.
func (s *Stream) Peek(n int, d *deadline.Deadline) ([]byte, error) {
	if n < 0 {
		return nil, bufio.ErrNegativeCount
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	s.link.lock()
	defer s.link.unlock()
	expired := d.Expired()
	for {
		p, err := s.peek(n, !expired)
		switch {
		case err != nil || len(p) == n:
			return p, err
		case expired:
			return p, os.ErrDeadlineExceeded
		}
		expired = s.wait(readCall, d) != nil
	}
}

// peek is Peek without waiting. If it returns fewer bytes and no error, and wait is set, it
// has set want for the wait for more.
func (s *Stream) peek(n int, wait bool) ([]byte, error) {
	if s.m.Unread() < n {
		s.link.pollCompletions()
	}
	p, err := s.m.PieceTold(n)
	if len(p) > 0 { // it stays mapped for slices of it, also when the ring is freed
		s.m.Front().Memory().(fabric.Memory).Keep()
	}
	s.want = 0
	if wait && len(p) < n && err == nil {
		s.want = n
	}
	return p, err
}

// Buffered is how many bytes Peek returns without waiting.
func (s *Stream) Buffered() int {
	s.link.lock()
	defer s.link.unlock()
	p, _ := s.m.Piece(math.MaxInt)
	return len(p)
}

// Discard takes the next n bytes and drops them, waiting for them until the deadline.
// It returns how many it has dropped.
func (s *Stream) Discard(n int, d *deadline.Deadline) (int, error) {
	if n < 0 {
		return 0, bufio.ErrNegativeCount
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	s.link.lock()
	defer s.link.unlock()
	if n == 0 {
		return 0, s.m.Owned()
	}
	for done := 0; ; {
		m, err := s.discardSome(n - done)
		done += m
		if err == nil && m == 0 {
			err = s.wait(readCall, d)
		}
		if err != nil || done == n {
			return done, err
		}
	}
}

// discardSome drops n bytes, or as many as there are, without waiting.
func (s *Stream) discardSome(n int) (int, error) {
	first, second, err := s.arrived(n)
	if n = len(first) + len(second); n > 0 {
		s.m.Taken(n)
	}
	return n, err
}
