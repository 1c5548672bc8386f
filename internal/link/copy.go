package link

import (
	"errors"
	"io"
	"os"

	"github.com/ringnet/ringnet/internal/deadline"
)

var errImpossibleRead = errors.New("the io.Reader returned a count that is negative or larger than its buffer")

// WriteFrom writes what one Read of r returns, as much as the peer has room for
// and buf can hold, waiting for room until the deadline. Whatever was read has
// been accepted, unless the stream was lost or closed meanwhile.
func (s *Stream) WriteFrom(r io.Reader, buf []byte, d *deadline.Deadline) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	for {
		if d.Expired() && s.openError() == nil {
			return 0, os.ErrDeadlineExceeded
		}
		s.link.mu.Lock()
		n, err := s.room(len(buf))
		s.link.mu.Unlock()
		if err != nil {
			return 0, err
		}
		if n > 0 {
			return s.writeRead(r, buf[:n])
		}
		if err := s.wait(writeCall, d); err != nil {
			return 0, err
		}
	}
}

// writeRead writes what r reads into buf, for all of which the peer has room.
func (s *Stream) writeRead(r io.Reader, buf []byte) (int, error) {
	n, err := r.Read(buf)
	if n < 0 || n > len(buf) {
		return 0, errImpossibleRead
	}
	never := deadline.New()
	for done := 0; done < n; {
		m, lost := s.writeSome(whole(buf[done:n]), never)
		done += m
		if lost != nil {
			return done, lost
		}
	}
	return n, err
}

// ReadTo writes to w what has arrived, n bytes at most, straight from the ring,
// waiting for it until the deadline. What w does not take can still be read.
func (s *Stream) ReadTo(w io.Writer, n int, d *deadline.Deadline) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	for {
		if d.Expired() && s.openError() == nil {
			return 0, os.ErrDeadlineExceeded
		}
		s.link.mu.Lock()
		first, _, err := s.arrived(n)
		s.link.mu.Unlock()
		if err != nil {
			return 0, err
		}
		if len(first) > 0 {
			n, err := w.Write(first)
			s.link.mu.Lock()
			defer s.link.mu.Unlock()
			s.taken(n)
			return n, err
		}
		if err := s.wait(readCall, d); err != nil {
			return 0, err
		}
	}
}
