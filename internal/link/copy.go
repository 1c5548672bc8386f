package link

import (
	"bufio"
	"io"
	"os"

	"github.com/ringnet/ringnet/internal/deadline"
)

// ReadTo writes to w what has arrived, n bytes at most, straight from the ring,
// waiting for it until the deadline. What w does not take can still be read.
func (s *Stream) ReadTo(w io.Writer, n int, d *deadline.Deadline) (written int, err error) {
	ended := s.Lend(n, d, func(p []byte, _ error) (int, bool) {
		if len(p) > 0 {
			written, err = w.Write(p)
		}
		return written, len(p) > 0
	})
	if ended != nil {
		return 0, ended
	}
	return written, err
}

// Lend calls use with what has arrived in one piece, n bytes at most, and drops as many
// bytes as use takes. Where nothing has arrived, end is nil, or why nothing will. If use is
// not done, Lend calls it again when there is more than it has left, waiting for that until
// the deadline; the error is why there is no more. use must not read s by itself.
func (s *Stream) Lend(n int, d *deadline.Deadline, use func(p []byte, end error) (taken int, done bool)) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	for {
		s.link.lock()
		if d.Expired() && s.m.Owned() == nil {
			s.link.unlock()
			return os.ErrDeadlineExceeded
		}
		p, _, end := s.arrived(n)
		s.link.unlock()
		taken, done := s.lend(p, end, use)
		switch {
		case done:
			return nil
		case end == nil && taken == 0 && len(p) == n:
			return bufio.ErrBufferFull
		case end == nil && taken == 0:
			end = s.awaitMore(len(p), d)
		}
		if end != nil {
			return end
		}
	}
}

// lend calls use with p, and drops as many bytes as it takes: none if it panics.
func (s *Stream) lend(p []byte, end error, use func(p []byte, end error) (taken int, done bool)) (taken int, done bool) {
	if len(p) > 0 {
		defer func() {
			s.link.lock()
			defer s.link.unlock()
			s.m.Taken(taken)
		}()
	}
	return use(p, end)
}

// awaitMore waits until more than n bytes have arrived in one piece, or, if n is 0, until
// nothing more will.
func (s *Stream) awaitMore(n int, d *deadline.Deadline) error {
	s.link.lock()
	defer s.link.unlock()
	s.want = n + 1
	err := s.wait(readCall, d)
	s.want = 0
	if err != nil || n == 0 {
		return err
	}
	p, why := s.m.PieceTold(n + 1)
	if len(p) <= n {
		return why
	}
	return nil
}
