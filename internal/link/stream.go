package link

import (
	"container/list"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// use is what a stream's owner still does with it.
//
//	reading     Read returns what arrives     → readClosed, aborted, orphaned
//	readClosed  CloseRead: it is dropped      → aborted, orphaned
//	aborted     Abort: calls fail             → orphaned
//	orphaned    Close: it is dropped, and answered with RESET
type use uint8

const (
	reading use = iota
	readClosed
	aborted
	orphaned
)

// Stream is one end of a reliable byte stream on a link. Its methods may be
// called at once from any goroutines. Errors are bare: io.EOF, net.ErrClosed,
// os.ErrDeadlineExceeded, a syscall.Errno, or an error that wraps one.
type Stream struct {
	link          *Link
	number        uint32
	local, remote netip.AddrPort

	reading sync.Mutex // the turn to read; held by the one Read under way, also while it waits
	writing sync.Mutex // the turn to write; held by the one Write under way, also while it waits
	cut     cut        // by that Write, while what it writes is posted; guarded by writing

	// Guarded by link.mu.
	use      use
	lossTold bool // a call has returned why the connection was lost
	ledger   credit.Stream
	opening  bool // it has a place in link.streams.opens
	refusal  wire.RefuseReason
	inbox    inbox
	outbox
	waiters
	closing afterClose
	stats   StreamStats
}

// outbox is what a stream has to send, and where that goes. Guarded by Link.mu.
type outbox struct {
	peer wire.RingPlace
	next wire.RingPlace // what the peer offers

	reaching bool // it is not known yet whether this side may write to what the peer has named last

	pending      chain
	inDataLine   bool        // in link.send.withData
	inRecordLine bool        // in link.send.withRecords
	line         placeInLine // in link.send.stagingLine

	sentSinceReceive int // messages that have left since one arrived

	end uint64 // work requests that complete with FIN or RESET; 0: neither is sent
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

// waiters are the calls on a stream that may have to wait. Guarded by Link.mu.
type waiters struct {
	calls   [calls]call
	touched bool // in link.receive.touched
	atWork  bool // counted in link.watch.atWork
}

// afterClose is how a stream ends that its owner has closed. Guarded by Link.mu.
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

// Link is the link that carries the stream.
func (s *Stream) Link() *Link { return s.link }

// Network is the name of the link's network.
func (l *Link) Network() string { return l.cfg.Network }

// PeerUser is the effective user ID that the peer's process had when it connected, if the network
// connects processes of one host and the link is not closed.
func (l *Link) PeerUser() (uid uint32, known bool) {
	l.lock()
	defer l.unlock()
	neighbor, ok := l.ep.(fabric.Neighbor)
	if !ok || l.stage == closed {
		return 0, false
	}
	uid, err := neighbor.PeerUser()
	return uid, err == nil
}

// Linger is Config.Linger.
func (s *Stream) Linger() time.Duration { return s.link.cfg.Linger }

// LocalAddr and RemoteAddr are the addresses of the stream's ends. They are not
// to be called after Close.
func (s *Stream) LocalAddr() netip.AddrPort  { return s.local }
func (s *Stream) RemoteAddr() netip.AddrPort { return s.remote }

// addStream enters a stream into the table. It is owned from then on. Called with mu held.
func (l *Link) addStream(number uint32, ledger credit.Stream, held piece) *Stream {
	s := &Stream{link: l, number: number, ledger: ledger, inbox: inbox{held: held}}
	for int(number) >= len(l.streams.byNumber) {
		l.streams.byNumber = append(l.streams.byNumber, nil)
	}
	l.streams.byNumber[number] = s
	l.streams.live.Add(1)
	l.streams.owned++
	return s
}

// changed is called after each change of the stream's ledger: it enters the stream into the
// line for records, gives back rings, and takes a stream that is over out of the table.
// Called with mu held.
func (s *Stream) changed() {
	l := s.link
	if s.ledger.Due() != credit.NoRecord && !s.inRecordLine {
		s.inRecordLine = true
		l.send.withRecords.push(s)
	}
	s.giveBack()
	if s.opening && !s.ledger.AwaitsAnswer() {
		s.opening = false
		l.streams.ended()
	}
	if s.ledger.Stage() == credit.Over && l.streams.byNumber[s.number] == s {
		l.streams.byNumber[s.number] = nil
		l.streams.live.Add(-1)
		l.streams.lowest = min(l.streams.lowest, int(s.number))
		l.alarms.clearClosing(s)
		if l.cfg.idle() == 0 && l.streams.live.Load() == 0 {
			l.leaving.sayGoAway()
		}
		if l.mayLeave() {
			l.alarms.set(idleAlarm, l.now().Add(l.cfg.idle()))
		}
		s.forget()
	}
}

// forget frees the stream's addresses once it has no owner and is over. Called with mu
// held.
func (s *Stream) forget() {
	if s.use == orphaned && (s.ledger.Stage() == credit.Over || s.link.stage >= ended) && s.remote.IsValid() {
		s.link.cfg.Addresses.release(s.link.cfg.Namespace, s.local, s.remote)
		s.remote = netip.AddrPort{}
	}
}

// readError is why nothing can be read, or nil if something has arrived, or still may.
// Called with mu held.
func (s *Stream) readError() error {
	switch {
	case s.use == orphaned:
		return net.ErrClosed
	case s.use == aborted:
		return syscall.ECONNABORTED
	case s.use == readClosed:
		return io.EOF
	case s.ledger.Unconsumed() > 0:
		return nil
	}
	return s.endError()
}

// endError is why nothing arrives any more, or nil. Called with mu held.
func (s *Stream) endError() error {
	switch {
	case s.ledger.EndReceived()&credit.FinEnd != 0:
		return io.EOF
	case s.ledger.EndReceived() != 0:
		return syscall.ECONNRESET
	}
	return s.link.failed()
}

// writeError is why nothing can be written, or nil. Called with mu held.
func (s *Stream) writeError() error {
	switch heard := s.ledger.EndReceived(); {
	case s.use == orphaned:
		return net.ErrClosed
	case s.use == aborted:
		return syscall.ECONNABORTED
	case s.ledger.Closing() && heard&credit.ResetEnd == 0:
		return syscall.EPIPE
	}
	return s.lossError()
}

// lossError is why the peer reads nothing more of what is written, or nil: it has reset the stream,
// or the link has ended. Called with mu held.
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
// again; err may be nil. Called with mu held.
func (s *Stream) tell(err error) {
	if err != nil && (s.use == aborted || err == s.lossError()) {
		s.lossTold = true
	}
}
