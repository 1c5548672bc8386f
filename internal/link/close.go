package link

import (
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/deadline"
)

// closeTimeout is how long a stream whose owner has closed it waits for its peer's
// application to close it too, before it is reset.
const closeTimeout = 5 * time.Second

// CloseWrite ends the direction that this side sends: the peer reads what was accepted and
// then io.EOF. It does not wait.
func (s *Stream) CloseWrite() error {
	l := s.link
	l.lock()
	defer l.unlock()
	if err := s.halfError(); err != nil {
		return err
	}
	s.ledger.CloseWrite()
	s.changed()
	s.wake()
	l.pollCompletions()
	return nil
}

// CloseRead makes Read return io.EOF, now and always. What has arrived unread
// and what still arrives is dropped, so that the peer can go on writing.
func (s *Stream) CloseRead() error {
	l := s.link
	l.lock()
	if err := s.halfError(); err != nil {
		l.unlock()
		return err
	}
	s.use = readClosed
	s.wake()
	l.unlock()
	s.dropInbox(func(int) {})
	return nil
}

// halfError is why half of the stream cannot be closed, or nil: as with TCP, nothing is left to close when
// the connection is lost, or when either side has ended its direction. Called with mu held.
func (s *Stream) halfError() error {
	loss := s.lossError()
	switch {
	case s.use == orphaned:
		return net.ErrClosed
	case s.use == aborted, loss != nil:
		s.lossTold = true
		return syscall.ENOTCONN
	case s.ledger.Closing() && s.ledger.EndReceived() != 0:
		return syscall.ENOTCONN
	}
	return nil
}

// dropInbox calls before with the number of bytes that have arrived and were not read, and
// drops them. It waits for a Read under way, which may be copying, and which its caller has
// told to stop.
func (s *Stream) dropInbox(before func(unread int)) {
	s.reading.Lock()
	defer s.reading.Unlock()
	l := s.link
	l.lock()
	defer l.unlock()
	l.pollCompletions()
	before(s.ledger.Unconsumed())
	s.discard()
	s.changed()
}

// discard drops what has arrived and will not be read. While a Read is copying it does
// nothing: the call that has told the Read to stop (dropInbox) drops the rest. Called with
// mu held.
func (s *Stream) discard() {
	if !s.inbox.taking {
		s.ledger.Consume(s.ledger.Received())
	}
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
	if s.use == orphaned {
		l.unlock()
		return net.ErrClosed
	}
	wasAborted := s.use == aborted
	s.use = orphaned
	if linger == 0 || s.ledger.Unconsumed() > 0 && !s.inbox.taking {
		s.closing.unread = true // it may be dropped as soon as more arrives
	}
	s.wake()
	l.path.settled.Broadcast() // for NewBuffer
	l.unlock()
	var lost error // why the connection had been lost before
	s.dropInbox(func(unread int) {
		lost = s.lossBefore(wasAborted)
		s.closing.resets = s.closing.resets || unread > 0
		if linger == 0 {
			s.drop()
		}
		if unread > 0 {
			s.closing.unread = true
		}
		if s.closing.unread { // also by an Abort before
			s.ledger.Reset()
		} else {
			s.ledger.CloseWrite()
		}
	})

	timedOut := linger > 0 && !s.isReady(closeCall) && s.awaitDelivery(linger) != nil

	// No call copies from the ring or to the staging memory any more.
	s.writing.Lock()
	defer s.writing.Unlock()
	l.lock()
	defer l.unlock()
	if timedOut {
		s.drop()
		s.ledger.Reset()
		s.changed()
	}
	l.orphan(s)
	switch {
	case linger == 0, s.lossTold:
		return nil
	case lost != nil && s.needNotSay(lost):
		return nil
	case lost != nil:
		return lost
	case timedOut:
		return syscall.ETIMEDOUT
	}
	return s.undelivered()
}

// lossBefore is why the connection is lost when Close is called, or nil. Called with mu held.
func (s *Stream) lossBefore(wasAborted bool) error {
	switch err := s.lossError(); {
	case wasAborted:
		return syscall.ECONNABORTED
	case err == nil && s.link.stage.final():
		return s.link.cause
	default:
		return err
	}
}

// needNotSay reports whether Close need not return why the connection was lost before: the peer's
// process is known to have all that Write has accepted, or both sides have reset the stream. Called
// with mu held.
func (s *Stream) needNotSay(lost error) bool {
	switch wasReset := s.ledger.EndReceived()&credit.ResetEnd != 0; {
	case !s.ledger.Unread():
		return true
	case lost == syscall.ECONNABORTED:
		return false
	case wasReset:
		return s.closing.resets
	}
	return s.ledger.Acked()
}

// undelivered is why the peer has not got all that was accepted and the end behind it, of which a Close
// has waited for the delivery; nil if it has, or has ended the stream by itself meanwhile. Called with
// mu held.
func (s *Stream) undelivered() error {
	switch wasReset := s.ledger.EndReceived()&credit.ResetEnd != 0; {
	case wasReset && s.ledger.Dropped():
		return s.lossError()
	case wasReset, s.delivered(), s.peerLeft() && !s.ledger.Unread():
		return nil
	case s.peerLeft():
		return s.lossError()
	}
	return s.link.cause
}

// Abort ends the stream for an operator: its owner's calls return ECONNABORTED from now on, and the
// peer's ECONNRESET. What has not been sent or read is dropped. The owner still has to close it.
func (s *Stream) Abort() error {
	l := s.link
	l.lock()
	if s.use == orphaned {
		l.unlock()
		return net.ErrClosed
	}
	s.use = aborted
	s.wake()
	l.path.settled.Broadcast()
	l.unlock()
	s.dropInbox(func(int) {
		s.drop()
		s.closing.unread = true
		s.ledger.Reset()
	})
	return nil
}

// awaitDelivery waits until the peer's device has the end of the stream, at most for the
// linger time. If the Close of another stream has timed out, and the peer has sent nothing
// since, the time that it has waited counts: closing all streams of a peer that is stopped
// takes no longer than closing one.
func (s *Stream) awaitDelivery(linger time.Duration) error {
	l := s.link
	l.lock()
	v := timedOutClose{linger, l.receive.messages}
	left := linger
	if l.streams.timedOut.messages == v.messages {
		left -= l.streams.timedOut.linger
	}
	l.unlock()
	limit := deadline.New()
	limit.Set(time.Now().Add(left))
	defer limit.Set(time.Time{})
	l.lock()
	defer l.unlock()
	err := s.wait(closeCall, limit)
	if err != nil && left > 0 {
		l.streams.timedOut = v
	}
	return err
}

// drop forgets what has been accepted and not sent. Called with mu held.
func (s *Stream) drop() {
	s.ledger.Drop()
	s.dropPending()
}

// orphan goes on with the stream without its owner: resets it when the peer has not closed
// it in time, and lets the link go if it was the last. Called with mu held.
func (l *Link) orphan(s *Stream) {
	l.streams.owned--
	s.waitsAgain()
	s.forget()
	if s.ledger.Stage() != credit.Over && l.stage < ended {
		l.alarms.setClosing(s, l.now().Add(closeTimeout))
	}
	l.startIdleTimer()
	if !l.active {
		l.watch.wanted = true // the calls of the stream do not come back, and another may begin
	}
}

// closeTick resets a stream that the peer's application has not closed in time, and then ends the link
// of a peer that does not answer that. Called with mu held.
func (s *Stream) closeTick() {
	l := s.link
	switch {
	case l.stage >= ended || s.ledger.Stage() == credit.Over:
	case !s.closing.resetAt.IsZero():
		s.answerTick()
	case l.disconnectedLately(&s.closing.deferredSince):
		l.alarms.setClosing(s, l.now().Add(closeTimeout))
	default:
		s.closing.resetAt = l.now()
		l.alarms.setClosing(s, l.now().Add(closeTimeout))
		s.ledger.Reset()
		s.changed()
	}
}

// answerTick ends the link of a peer that has received the end of a stream and not answered:
// until it has, it may write to the stream's ring. A peer that has not acknowledged to have
// received that, or to which it could not be sent, may be stopped: it has as long as if the path
// to it were lost. Called with mu held.
func (s *Stream) answerTick() {
	l := s.link
	silent := s.closing.told == 0 || s.inRecordLine || l.ledger.Acknowledged().Records < s.closing.told
	switch {
	case s.ledger.AwaitsAnswer() || l.disconnectedLately(&s.closing.resetAt) ||
		silent && l.since(s.closing.resetAt)-closeTimeout < l.cfg.ResumeTimeout:
		l.alarms.setClosing(s, l.now().Add(closeTimeout))
	default:
		l.fail(&ProtocolError{fmt.Sprintf("it has not answered the RESET of stream %d", s.number)})
	}
}

// closeReady reports whether Close has nothing more to wait for. On a link that ends, what arrives up to
// the last receive may tell that the peer's process has all.
func closeReady(s *Stream) bool {
	return s.ledger.Acked() || s.link.stage >= ended || s.delivered() && !s.link.stage.final()
}

// delivered reports whether the peer's device has all that was accepted, and the FIN or RESET
// behind it. Called with mu held.
func (s *Stream) delivered() bool {
	return s.ledger.Acked() || s.end > 0 && s.link.send.slots.Completed(s.end)
}

// peerLeft reports whether the peer ended its stream and then disconnected, as it
// does when it has closed. Called with mu held.
func (s *Stream) peerLeft() bool {
	return s.ledger.EndReceived() != 0 && disconnected(s.link.cause)
}

// timedOutClose is the last Close of a stream on a link that the peer has not answered in
// time.
type timedOutClose struct {
	linger   time.Duration // that it has waited
	messages uint64        // that the peer had sent before
}
