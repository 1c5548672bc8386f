package link

import (
	"os"

	"github.com/ringnet/ringnet/internal/deadline"
)

// Read reads into p what has arrived, at least one byte, waiting for it until
// the deadline. Once everything that arrived has been read, it returns io.EOF if the peer
// has ended its stream, or the reason why otherwise no more will come. p is the caller's
// again when Read returns.
func (s *Stream) Read(p []byte, d *deadline.Deadline) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.link.lock()
	defer s.link.unlock()
	switch {
	case len(p) == 0:
		return 0, s.m.Owned()
	case d.Expired() && s.m.Owned() == nil:
		return 0, os.ErrDeadlineExceeded
	}
	for {
		n, err := s.take(p)
		if n > 0 || err != nil {
			return n, err
		}
		if err := s.wait(readCall, d); err != nil {
			return 0, err
		}
	}
}

// AwaitRead waits until a Read would not wait, or the deadline has passed.
func (s *Stream) AwaitRead(d *deadline.Deadline) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.link.lock()
	defer s.link.unlock()
	if d.Expired() && s.m.Owned() == nil {
		return os.ErrDeadlineExceeded
	}
	if !readReady(s) {
		s.link.pollCompletions()
	}
	if readReady(s) {
		return nil
	}
	return s.wait(readCall, d)
}

// take reads into p what has arrived. It may release mu to copy.
func (s *Stream) take(p []byte) (int, error) {
	first, second, err := s.arrived(len(p))
	n := len(first) + len(second)
	if n == 0 {
		return 0, err
	}
	// No other call takes bytes out while this Read is the one under way.
	if n > copyLocked {
		s.link.unlock()
	}
	copy(p[copy(p, first):], second)
	if n > copyLocked {
		s.link.lock()
	}
	s.m.Taken(n)
	return n, nil
}

// arrived returns the next n bytes to be read, or as many as there are, or why
// there will be none.
func (s *Stream) arrived(n int) (first, second []byte, err error) {
	if s.m.Unread() == 0 {
		s.link.pollCompletions()
	}
	return s.m.Arrived(n)
}

func readReady(s *Stream) bool {
	n := max(s.want, 1)
	p, err := s.m.Piece(n)
	return len(p) == n || err != nil
}
