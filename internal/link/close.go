package link

import (
	"net"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/deadline"
)

// patience is how long a stream whose owner has closed it waits for its peer's
// application to close it too, before it is reset.
const patience = 5 * time.Second

// CloseWrite says that no more bytes will be written: the peer reads what was
// accepted and then io.EOF. It does not wait.
func (s *Stream) CloseWrite() error {
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := s.halfError(); err != nil {
		return err
	}
	s.ledger.CloseWrite()
	s.changed()
	s.wake()
	l.pollAndSend()
	l.watchNow()
	return nil
}

// CloseRead makes Read return io.EOF, now and always. What has arrived unread
// and what still arrives is dropped, so that the peer can go on writing.
func (s *Stream) CloseRead() error {
	l := s.link
	l.mu.Lock()
	if err := s.halfError(); err != nil {
		l.mu.Unlock()
		return err
	}
	s.use = deaf
	s.wake()
	l.mu.Unlock()
	s.dropInbox(func(int) {})
	return nil
}

// halfError is why half of the stream cannot be closed, or nil. Called with mu
// held.
func (s *Stream) halfError() error {
	switch {
	case s.use == disowned:
		return net.ErrClosed
	case s.link.failed() != nil:
		return syscall.ENOTCONN
	}
	return nil
}

// dropInbox drops what has arrived, and tells before how much that is. A Read
// under way, which has been told to stop, leaves first, for it may be copying.
func (s *Stream) dropInbox(before func(unread int)) {
	s.reading.Lock()
	defer s.reading.Unlock()
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pollCompletions()
	before(s.inbox.Len())
	s.discard()
	s.changed()
	l.pollAndSend()
	l.watchNow()
}

// discard drops what has arrived, for nobody will read it, unless a Read still takes
// some: whoever told it to stop waits for that, to drop the rest. Called with mu held.
func (s *Stream) discard() {
	if !s.taking {
		s.ledger.Consume(s.inbox.clear())
	}
}

// Close ends the stream. Calls under way return net.ErrClosed. It sends what
// Write has accepted, says that the stream ends, and waits until the peer's
// device has taken all of that, at most for the linger time; with none it drops
// what has not been sent and does not wait. If bytes have arrived that were not
// read, the peer is told that too.
//
// Close returns an error if the bytes could not be delivered.
func (s *Stream) Close(linger time.Duration) error {
	l := s.link
	l.mu.Lock()
	if s.use == disowned {
		l.mu.Unlock()
		return net.ErrClosed
	}
	s.use = disowned
	wasLost := l.final
	s.wake()
	l.mu.Unlock()
	s.dropInbox(func(unread int) {
		if linger == 0 {
			s.drop()
		}
		if s.unread = unread > 0 || linger == 0; s.unread {
			s.ledger.Reset()
		} else {
			s.ledger.CloseWrite()
		}
	})

	timedOut := linger > 0 && !s.isReady(closeCall) && s.awaitDelivery(linger) != nil

	// Nobody copies from the ring or to the staging memory any more.
	s.writing.Lock()
	defer s.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if timedOut {
		s.drop()
		s.ledger.Reset()
		s.changed()
		l.trySend()
	}
	l.disown(s)
	switch {
	case timedOut && !wasLost:
		return syscall.ETIMEDOUT
	case wasLost, linger == 0, s.delivered(), s.ledger.Heard()&credit.ResetEnd != 0, s.peerLeft():
		return nil
	}
	return l.cause
}

// awaitDelivery waits until the peer's device has the end of the stream, at most
// for the linger time. What the Close of another stream has waited in vain it
// does not wait once more, unless the peer has sent something since: closing all
// streams of a peer that is stopped takes no longer than closing one.
func (s *Stream) awaitDelivery(linger time.Duration) error {
	l := s.link
	l.mu.Lock()
	v := vain{linger, l.receive.messages}
	left := linger
	if l.vain.heard == v.heard {
		left -= l.vain.waited
	}
	l.mu.Unlock()
	limit := deadline.New()
	limit.Set(time.Now().Add(left))
	defer limit.Set(time.Time{})
	err := s.wait(closeCall, limit)
	if err != nil && left > 0 {
		l.mu.Lock()
		l.vain = v
		l.mu.Unlock()
	}
	return err
}

// drop forgets what has been accepted and not sent. Called with mu held.
func (s *Stream) drop() {
	s.ledger.Drop()
	s.dropPending()
	s.link.wakeTouched()
}

// disown has the link do without the stream's owner. Called with mu held.
func (l *Link) disown(s *Stream) {
	l.owned--
	s.forget()
	if s.ledger.Stage() != credit.Over && l.stage < ended {
		s.lastCall = time.AfterFunc(patience, s.loseHope)
	}
	l.letGo()
	l.watchNow() // whoever polled for the stream does not come back
}

// loseHope resets a stream that the peer's application does not close.
func (s *Stream) loseHope() {
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stage >= ended || s.ledger.Stage() == credit.Over:
		return
	case l.outOfTouch(&s.putOff):
		s.lastCall.Reset(patience)
		return
	}
	s.ledger.Reset()
	s.changed()
	l.trySend()
}

// delivered says whether the peer's device has all that was accepted, and the
// word that it was all. Called with mu held.
func (s *Stream) delivered() bool {
	return s.ledger.Acked() || s.end > 0 && s.link.send.slots.Completed(s.end)
}

// peerLeft says whether the peer ended its stream and then disconnected, as it
// does when it has closed. Called with mu held.
func (s *Stream) peerLeft() bool {
	return s.ledger.Heard() != 0 && disconnected(s.link.cause)
}

// vain is how long a Close has waited for the peer in vain.
type vain struct {
	waited time.Duration
	heard  uint64 // messages that the peer had sent before
}
