package link

import (
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
)

// CloseWrite ends the direction that this side sends: the peer reads what was accepted and
// then io.EOF. It does not wait.
func (s *Stream) CloseWrite() error {
	l := s.link
	l.lock()
	defer l.unlock()
	err := s.m.CloseWrite()
	if err == nil {
		l.settled.Broadcast() // for NewBuffer
		l.pollCompletions()
	}
	return err
}

// CloseRead makes Read return io.EOF, now and always. What has arrived unread
// and what still arrives is dropped, so that the peer can go on writing.
func (s *Stream) CloseRead() error {
	s.link.lock()
	err := s.m.CloseRead()
	s.link.unlock()
	if err == nil {
		s.behindRead(s.m.DropUnread)
	}
	return err
}

// behindRead tells the machine something when no Read copies any more, which has been told to stop.
func (s *Stream) behindRead(tell func()) {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.link.lock()
	defer s.link.unlock()
	s.link.pollCompletions()
	tell()
}

// Close ends the stream. Calls under way return net.ErrClosed. It sends what Write has
// accepted and then FIN, and waits until the peer's device has taken all of that, at most
// for the linger time; with none it drops what has not been sent and does not wait. If
// bytes have arrived that were not read, it sends RESET instead of FIN.
//
// Close returns an error if the peer's device has not taken all of that; or if the connection had
// been lost before, no call has returned why, and there are bytes that the peer is not known to have read.
func (s *Stream) Close(linger time.Duration) error {
	l := s.link
	l.lock()
	closing, err := s.m.Close(linger == 0)
	l.settled.Broadcast() // for NewBuffer
	l.unlock()
	if err != nil {
		return err
	}
	s.behindRead(closing.End)

	timedOut := linger > 0 && !s.isReady(closeCall) && s.awaitDelivery(linger) != nil

	// No call copies from the ring or to the staging memory any more.
	s.writing.Lock()
	defer s.writing.Unlock()
	l.lock()
	defer l.unlock()
	s.waitsAgain()
	return closing.Done(timedOut)
}

// Abort ends the stream for an operator: its owner's calls return ECONNABORTED from now on, and the
// peer's ECONNRESET. What has not been sent or read is dropped. The owner still has to close it.
func (s *Stream) Abort() error {
	l := s.link
	l.lock()
	err := s.m.Abort()
	l.settled.Broadcast() // for NewBuffer
	l.unlock()
	if err == nil {
		s.behindRead(s.m.Aborted)
	}
	return err
}

// awaitDelivery waits until the peer's device has the end of the stream, at most for the
// linger time.
func (s *Stream) awaitDelivery(linger time.Duration) error {
	l := s.link
	l.lock()
	left, messages := l.m.Lingers(linger)
	l.unlock()
	limit := deadline.New()
	limit.Set(time.Now().Add(left))
	defer limit.Set(time.Time{})
	l.lock()
	defer l.unlock()
	err := s.wait(closeCall, limit)
	if err != nil && left > 0 {
		l.m.TimedOut(linger, messages)
	}
	return err
}
