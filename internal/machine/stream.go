package machine

import (
	"container/list"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

// Use is what a stream's owner still does with it.
//
//	Reading     what arrives is read          → ReadClosed, Aborted, Orphaned
//	ReadClosed  CloseRead: it is dropped      → Aborted, Orphaned
//	Aborted     Abort: calls fail             → Orphaned
//	Orphaned    Close: it is dropped, and answered with RESET
type Use uint8

const (
	Reading Use = iota
	ReadClosed
	Aborted
	Orphaned
)

// Stream is one end of a reliable byte stream on a link.
type Stream struct {
	Owner any // what its caller knows it by

	link   *Link
	number uint32
	port   uint16 // of this side's address, for OPEN

	use      Use
	lossTold bool // a call has returned why the connection was lost
	touched  bool // in Wants.Touched
	ledger   credit.Stream
	opening  bool // counted in link.streams.opening
	forgot   bool // in Wants.Forgotten, or it has been
	refusal  wire.RefuseReason
	inbox    inbox
	outbox
	closing afterClose
	stats   StreamStats
}

// outbox is what a stream has to send, and where that goes.
type outbox struct {
	peer wire.RingPlace
	next wire.RingPlace // what the peer offers

	named wire.Record // ACCEPT or RING, whose ring this side does not know yet that it may write to; zero: none

	pending      chain
	inDataLine   bool        // in link.send.withData
	inRecordLine bool        // in link.send.withRecords
	line         placeInLine // in link.send.stagingLine

	sentSinceReceive int // messages that have left since one arrived

	end sent // FIN or RESET
}

// placeInLine is whether a Write of the stream's waits in line for staging memory.
//
//	notInLine  → inLine, when the Write finds none
//	inLine     the Write waits      → notInLine, when there is some for it;
//	                                  leftLine, when the Write fails
//	leftLine   no Write waits       → notInLine, when its turn comes;
//	                                  inLine, when another Write finds none before
type placeInLine uint8

const (
	notInLine placeInLine = iota
	inLine
	leftLine
)

// afterClose is how a stream ends that its owner has closed.
type afterClose struct {
	unread        bool          // Close has dropped bytes
	resets        bool          // the same, or bytes have come since
	late          bool          // the peer has answered with RESET what came after its Close
	told          uint64        // record SENDs that the peer has received with FIN or RESET; 0: neither is sent
	due           time.Time     // of closeTick
	place         *list.Element // in link.alarms.closing; nil: none
	deferredSince time.Time     // when the RESET was first put off: see disconnectedLately; zero: it has not been
	resetAt       time.Time     // when the peer was reset; zero: it has not been
}

// addStream enters a stream into the table. It is owned from then on.
func (l *Link) addStream(number uint32, ledger credit.Stream, held ring.Piece) *Stream {
	s := &Stream{link: l, number: number, ledger: ledger, inbox: inbox{held: held}}
	for int(number) >= len(l.streams.byNumber) {
		l.streams.byNumber = append(l.streams.byNumber, nil)
	}
	l.streams.byNumber[number] = s
	l.streams.live++
	l.More = true
	l.streams.owned++
	return s
}

// Number is the stream's number on its link.
func (s *Stream) Number() uint32 { return s.number }

// ledgerChanged is called after each change of the stream's ledger: it enters the stream into the
// line for records, gives back rings, and takes a stream that is over out of the table.
func (s *Stream) ledgerChanged() {
	l := s.link
	if s.ledger.Due() != credit.NoRecord && !s.inRecordLine {
		s.inRecordLine = true
		l.send.withRecords.push(s)
	}
	s.giveBack()
	if s.opening && !s.ledger.AwaitsAnswer() {
		s.opening = false
		l.Answered++
		l.More = true
		if l.streams.opening--; l.streams.opening == 0 {
			l.streams.unheard = time.Time{}
		}
	}
	if s.ledger.Stage() == credit.Over && l.streams.byNumber[s.number] == s {
		l.streams.byNumber[s.number] = nil
		l.streams.live--
		l.More = true
		l.streams.lowest = min(l.streams.lowest, int(s.number))
		l.alarms.clearClosing(s)
		s.touch() // a Close has nothing more to wait for
		if l.cfg.idle() == 0 && l.streams.live == 0 {
			l.goingAway.sayGoAway()
		}
		if l.mayLeave() {
			l.alarms.set(idleAlarm, l.now().Add(l.cfg.idle()))
		}
		s.forget()
	}
}

// forget frees the stream's addresses once it has no owner and is over.
func (s *Stream) forget() {
	if s.use == Orphaned && (s.ledger.Stage() == credit.Over || s.link.stage >= Ended) && !s.forgot {
		s.forgot = true
		s.link.Forgotten = append(s.link.Forgotten, s)
		s.link.More = true
	}
}

// touch has the stream's calls look whether they are ready.
func (s *Stream) touch() {
	if !s.touched {
		s.touched = true
		s.link.Touched = append(s.link.Touched, s)
	}
}

// Untouched notes that the stream's calls have looked.
func (s *Stream) Untouched() { s.touched = false }

// readError is why nothing can be read, or nil if something has arrived, or still may.
func (s *Stream) readError() error {
	switch {
	case s.use == Orphaned:
		return net.ErrClosed
	case s.use == Aborted:
		return syscall.ECONNABORTED
	case s.use == ReadClosed:
		return io.EOF
	case s.ledger.Unconsumed() > 0:
		return nil
	}
	return s.endError()
}

// endError is why nothing arrives any more, or nil.
func (s *Stream) endError() error {
	switch {
	case s.ledger.EndReceived()&credit.FinEnd != 0:
		return io.EOF
	case s.ledger.EndReceived() != 0:
		return syscall.ECONNRESET
	}
	return s.link.failed()
}

// writeError is why nothing can be written, or nil.
func (s *Stream) writeError() error {
	switch heard := s.ledger.EndReceived(); {
	case s.use == Orphaned:
		return net.ErrClosed
	case s.use == Aborted:
		return syscall.ECONNABORTED
	case s.ledger.Closing() && heard&credit.ResetEnd == 0:
		return syscall.EPIPE
	}
	return s.lossError()
}

// lossError is why the peer reads nothing more of what is written, or nil: it has reset the stream,
// or the link has ended.
func (s *Stream) lossError() error {
	switch reset := s.ledger.EndReceived()&credit.ResetEnd != 0; {
	case reset && s.closing.late:
		return syscall.EPIPE
	case reset:
		return syscall.ECONNRESET
	case s.link.failed() != nil && s.peerLeft():
		return syscall.EPIPE
	}
	return s.link.failed()
}

// tell notes that a call returns err. If that is why the connection was lost, Close need not say it
// again; err may be nil.
func (s *Stream) tell(err error) {
	if err != nil && (s.use == Aborted || err == s.lossError()) {
		s.lossTold = true
	}
}

// Owned is net.ErrClosed after Close, else nil.
func (s *Stream) Owned() error {
	if s.use == Orphaned {
		return net.ErrClosed
	}
	return nil
}

// Uses is what the stream's owner still does with it.
func (s *Stream) Uses() Use { return s.use }
