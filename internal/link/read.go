package link

import (
	"net"
	"os"

	"github.com/ringnet/ringnet/internal/deadline"
)

// copyLocked is how many bytes are copied without releasing the link's lock: to release it
// and take it again would take longer.
const copyLocked = 1 << 10

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
		return 0, s.openError()
	case d.Expired() && s.openError() == nil:
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
	if d.Expired() && s.openError() == nil {
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

// take reads into p what has arrived. Called with mu held, which it may release
// to copy.
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
	s.taken(n)
	return n, nil
}

// arrived returns the next n bytes to be read, or as many as there are, or why
// there will be none. Called with mu held.
func (s *Stream) arrived(n int) (first, second []byte, err error) {
	if s.ledger.Unconsumed() == 0 {
		s.link.pollCompletions()
	}
	if err := s.readError(); err != nil {
		s.tell(err)
		return nil, nil, err
	}
	first, second = s.arrivedBytes(n)
	s.inbox.taking = len(first) > 0
	return first, second, nil
}

// taken frees the room of n bytes that have been read, and has CREDIT sent if a quarter of the
// ring is due. Called with mu held.
func (s *Stream) taken(n int) {
	s.inbox.taking = false
	s.ledger.Consume(s.ledger.Consumed() + uint64(n))
	if s.inbox.timesFilled >= fillsToGrow && !s.link.sharesMemory() {
		s.grow(growth * s.inbox.held.size)
	}
	s.changed()
}

func readReady(s *Stream) bool {
	n := max(s.inbox.want, 1)
	p, err := s.piece(n)
	return len(p) == n || err != nil
}

// openError is net.ErrClosed after Close. Called with mu held.
func (s *Stream) openError() error {
	if s.use == orphaned {
		return net.ErrClosed
	}
	return nil
}
