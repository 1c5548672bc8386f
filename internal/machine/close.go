package machine

import (
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
)

// CloseTimeout is how long a stream whose owner has closed it waits for its peer's
// application to close it too, before it is reset.
const CloseTimeout = 5 * time.Second

// CloseWrite ends the direction that this side sends, behind what was accepted.
func (s *Stream) CloseWrite() error {
	if err := s.halfError(); err != nil {
		return err
	}
	s.ledger.CloseWrite()
	s.ledgerChanged()
	s.touch()
	return nil
}

// CloseRead has nothing more read. The caller then calls DropUnread.
func (s *Stream) CloseRead() error {
	if err := s.halfError(); err != nil {
		return err
	}
	s.use = ReadClosed
	s.touch()
	return nil
}

// halfError is why half of the stream cannot be closed, or nil: as with TCP, nothing is left to close when
// the connection is lost, or when either side has ended its direction.
func (s *Stream) halfError() error {
	loss := s.lossError()
	switch {
	case s.use == Orphaned:
		return net.ErrClosed
	case s.use == Aborted, loss != nil:
		s.lossTold = true
		return syscall.ENOTCONN
	case s.ledger.Closing() && s.ledger.EndReceived() != 0:
		return syscall.ENOTCONN
	}
	return nil
}

// DropUnread drops what has arrived and was not read. No Read copies it any more.
func (s *Stream) DropUnread() {
	s.discard()
	s.ledgerChanged()
}

// discard drops what has arrived and will not be read. While a Read is copying it does
// nothing: the call that has told the Read to stop drops the rest.
func (s *Stream) discard() {
	if !s.inbox.taking {
		s.ledger.Consume(s.ledger.Received())
	}
}

// Closing is a Close of a stream.
type Closing struct {
	s          *Stream
	now        bool  // it does not linger
	wasAborted bool  // Abort was called before
	lost       error // why the connection had been lost before
}

// Close ends the stream: calls under way return net.ErrClosed. If now is set, what has not been sent is dropped. When no
// Read copies any more the caller calls End, waits for CloseReady unless now is set, and then calls Done.
func (s *Stream) Close(now bool) (Closing, error) {
	if s.use == Orphaned {
		return Closing{}, net.ErrClosed
	}
	c := Closing{s: s, now: now, wasAborted: s.use == Aborted}
	s.use = Orphaned
	if now || s.ledger.Unconsumed() > 0 && !s.inbox.taking {
		s.closing.unread = true // it may be dropped as soon as more arrives
	}
	s.touch()
	return c, nil
}

// End drops what has arrived and was not read, and sends FIN, or RESET if there was any.
func (c *Closing) End() {
	s := c.s
	unread := s.ledger.Unconsumed() > 0
	c.lost = s.lossBefore(c.wasAborted)
	s.closing.resets = s.closing.resets || unread
	if c.now {
		s.drop()
	}
	if unread {
		s.closing.unread = true
	}
	if s.closing.unread { // also by an Abort before
		s.ledger.Reset()
	} else {
		s.ledger.CloseWrite()
	}
	s.DropUnread()
}

// Done leaves the stream to the link, resets it if it has timedOut, and returns the error of Close: if the peer's device
// has not taken all that was accepted; or if the connection had been lost before, no call has returned why, and there
// are bytes that the peer is not known to have read.
func (c *Closing) Done(timedOut bool) error {
	s := c.s
	if timedOut {
		s.drop()
		s.ledger.Reset()
		s.ledgerChanged()
	}
	s.orphan()
	switch {
	case c.now, s.lossTold:
		return nil
	case c.lost != nil && s.needNotSay(c.lost):
		return nil
	case c.lost != nil:
		return c.lost
	case timedOut:
		return syscall.ETIMEDOUT
	}
	return s.undelivered()
}

// lossBefore is why the connection is lost when Close is called, or nil.
func (s *Stream) lossBefore(wasAborted bool) error {
	switch err := s.lossError(); {
	case wasAborted:
		return syscall.ECONNABORTED
	case err == nil && s.link.stage.Final():
		return s.link.cause
	default:
		return err
	}
}

// needNotSay reports whether Close need not return why the connection was lost before: the peer's
// process is known to have all that Write has accepted, or both sides have reset the stream.
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
// has waited for the delivery; nil if it has, or has ended the stream by itself meanwhile.
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

// Abort ends the stream for an operator: its owner's calls return ECONNABORTED from now on. When no Read copies any more
// the caller calls Aborted.
func (s *Stream) Abort() error {
	if s.use == Orphaned {
		return net.ErrClosed
	}
	s.use = Aborted
	s.touch()
	return nil
}

// Aborted drops what has not been sent or read, and resets the stream.
func (s *Stream) Aborted() {
	s.drop()
	s.closing.unread = true
	s.ledger.Reset()
	s.DropUnread()
}

// timedOutClose is the last Close of a stream on a link that the peer has not answered in
// time.
type timedOutClose struct {
	linger   time.Duration // that it has waited
	messages uint64        // that the peer had sent before
}

// Lingers is how long a Close that is to wait for so long waits: if the Close of another stream has timed out, and the
// peer has sent nothing since, the time that it has waited counts. So to close all streams of a peer that is stopped
// takes no longer than to close one. Messages is for TimedOut.
func (l *Link) Lingers(linger time.Duration) (left time.Duration, messages uint64) {
	if messages = l.receive.messages; l.streams.timedOut.messages == messages {
		linger -= l.streams.timedOut.linger
	}
	return linger, messages
}

// TimedOut notes that a Close has waited in vain.
func (l *Link) TimedOut(linger time.Duration, messages uint64) {
	l.streams.timedOut = timedOutClose{linger, messages}
}

// drop forgets what has been accepted and not sent.
func (s *Stream) drop() {
	s.ledger.Drop()
	s.dropPending()
}

// orphan goes on with the stream without its owner: resets it when the peer has not closed
// it in time, and lets the link go if it was the last.
func (s *Stream) orphan() {
	l := s.link
	s.forget()
	if s.ledger.Stage() != credit.Over && l.stage < Ended {
		l.alarms.setClosing(s, l.now().Add(CloseTimeout))
	}
	l.Disown()
	if !l.active {
		l.Watched = true // the calls of the stream do not come back, and another may begin
	}
}

// closeTick resets a stream that the peer's application has not closed in time, and then ends the link
// of a peer that does not answer that.
func (s *Stream) closeTick() {
	l := s.link
	switch {
	case l.stage >= Ended || s.ledger.Stage() == credit.Over:
	case !s.closing.resetAt.IsZero():
		s.answerTick()
	case l.disconnectedLately(&s.closing.deferredSince):
		l.alarms.setClosing(s, l.now().Add(CloseTimeout))
	default:
		s.closing.resetAt = l.now()
		l.alarms.setClosing(s, l.now().Add(CloseTimeout))
		s.ledger.Reset()
		s.ledgerChanged()
	}
}

// answerTick ends the link of a peer that has received the end of a stream and not answered:
// until it has, it may write to the stream's ring. A peer that has not acknowledged to have
// received that, or to which it could not be sent, may be stopped: it has as long as if the path
// to it were lost.
func (s *Stream) answerTick() {
	l := s.link
	silent := s.closing.told == 0 || s.inRecordLine || l.ledger.Acknowledged().Records < s.closing.told
	switch {
	case s.ledger.AwaitsAnswer() || l.disconnectedLately(&s.closing.resetAt) ||
		silent && l.since(s.closing.resetAt)-CloseTimeout < l.cfg.ResumeTimeout:
		l.alarms.setClosing(s, l.now().Add(CloseTimeout))
	default:
		l.Fail(&ProtocolError{fmt.Sprintf("it has not answered the RESET of stream %d", s.number)})
	}
}

// CloseReady reports whether Close has nothing more to wait for. On a link that ends, what arrives up to
// the last receive may tell that the peer's process has all.
func (s *Stream) CloseReady() bool {
	return s.ledger.Acked() || s.ledger.Stage() == credit.Over || s.link.stage >= Ended || s.delivered() && !s.link.stage.Final()
}

// delivered reports whether the peer's device has all that was accepted, and the FIN or RESET
// behind it.
func (s *Stream) delivered() bool {
	return s.ledger.Acked() || s.end.completed(&s.link.send.slots)
}

// peerLeft reports whether the peer ended its stream and then disconnected, as it
// does when it has closed.
func (s *Stream) peerLeft() bool {
	return s.ledger.EndReceived() != 0 && disconnected(s.link.cause)
}
