package link

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/wire"
)

// use is what a stream's owner still does with it.
//
//	reading   Read returns what arrives     → deaf, disowned
//	deaf      CloseRead: it is dropped      → disowned
//	disowned  Close: it is dropped, and answered with RESET
type use uint8

const (
	reading use = iota
	deaf
	disowned
)

// Stream is one end of a reliable byte stream on a link. Its methods may be
// called at once from any goroutines. Errors are bare: io.EOF, net.ErrClosed,
// os.ErrDeadlineExceeded, a syscall.Errno, or an error that wraps one.
type Stream struct {
	link          *Link
	number        uint32
	local, remote netip.AddrPort

	reading sync.Mutex // held by the one Read under way, also while it waits
	writing sync.Mutex // held by the one Write under way, also while it waits

	// Guarded by link.mu.
	use      use
	taking   bool // a Read copies out of inbox, most likely without mu
	want     int  // bytes that the Peek under way waits for; 0: there is none
	ledger   credit.Stream
	opening  bool // it has a place in link.opens
	inbox    inbox
	peer     wire.RingPlace
	next     wire.RingPlace // what the peer offers
	calls    [calls]call
	servedAt uint64 // watch.serves, when one last became ready
	outbox
	refusal  wire.RefuseReason
	unread   bool        // Close has dropped bytes
	late     bool        // the peer has answered with RESET what came after its Close
	touched  bool        // in link.receive.touched
	lastCall *time.Timer // of patience
	putOff   time.Time   // see outOfTouch; zero: lastCall has not been
	stats    StreamStats
}

// outbox is what a stream has to send.
type outbox struct {
	pending chain
	sending bool // in link.send.streams or link.send.busy
	talking bool // in link.send.talkers
	queued  bool // in link.send.short
	short   bool // and waits for its turn there; else that is passed over

	// ahead is how many work requests have to complete before a little data is
	// sent: all up to the last signaled one with data of the stream.
	ahead uint64

	// streak is how many messages have left since one arrived. With none the
	// send queue is most likely idle. A hint; slots are freed by their
	// completions alone.
	streak int

	end uint64 // work requests that complete with FIN or RESET; 0: neither is sent
}

// Link is what the stream runs on.
func (s *Stream) Link() *Link { return s.link }

// LocalAddr and RemoteAddr are the addresses of the stream's ends. They are not
// to be called after Close.
func (s *Stream) LocalAddr() netip.AddrPort  { return s.local }
func (s *Stream) RemoteAddr() netip.AddrPort { return s.remote }

// addStream enters a stream into the table. Called with mu held.
func (l *Link) addStream(number uint32, ledger credit.Stream, held piece) *Stream {
	s := &Stream{link: l, number: number, ledger: ledger, inbox: inbox{held: held}, servedAt: l.watch.serves}
	for int(number) >= len(l.streams) {
		l.streams = append(l.streams, nil)
	}
	l.streams[number] = s
	l.live.Add(1)
	l.owned++
	return s
}

// changed sees to what a change of the stream's ledger brings: records to send,
// memory to give back, the end. Called with mu held.
func (s *Stream) changed() {
	l := s.link
	if s.ledger.Due() != credit.NoRecord && !s.talking {
		s.talking = true
		l.send.talkers.push(s)
	}
	s.giveBack()
	if s.opening && s.ledger.Stage() > credit.Opening {
		s.opening = false
		<-l.opens
	}
	if s.ledger.Stage() == credit.Over && l.streams[s.number] == s {
		l.streams[s.number] = nil
		l.live.Add(-1)
		l.stats.addBytes(s)
		l.lowest = min(l.lowest, int(s.number))
		if s.lastCall != nil {
			s.lastCall.Stop()
		}
		if l.cfg.Idle == 0 && l.live.Load() == 0 && l.leaving.sent == 0 { // an OPEN may cross with GOAWAY
			l.leaving.due = true
		}
		if l.mayLeave() {
			l.idle.Reset(l.cfg.Idle)
		}
		s.forget()
	}
}

// forget gives up the stream's addresses once nobody has it. Called with mu
// held.
func (s *Stream) forget() {
	if s.use == disowned && (s.ledger.Stage() == credit.Over || s.link.stage >= ended) && s.remote.IsValid() {
		s.link.cfg.Addresses.release(s.local, s.remote)
		s.remote = netip.AddrPort{}
	}
}

// readError is why nothing can be read, or nil if there is something, or may
// still be. Called with mu held.
func (s *Stream) readError() error {
	switch {
	case s.use == disowned:
		return net.ErrClosed
	case s.use == deaf:
		return io.EOF
	case s.inbox.Len() > 0:
		return nil
	}
	return s.endError()
}

// endError is why nothing arrives any more, or nil. Called with mu held.
func (s *Stream) endError() error {
	switch {
	case s.ledger.Heard()&credit.FinEnd != 0:
		return io.EOF
	case s.ledger.Heard() != 0:
		return syscall.ECONNRESET
	}
	return s.link.failed()
}

// writeError is why nothing can be written, or nil. Called with mu held.
func (s *Stream) writeError() error {
	heard := s.ledger.Heard()
	switch {
	case s.use == disowned:
		return net.ErrClosed
	case s.ledger.Closing() && heard&credit.ResetEnd == 0:
		return syscall.EPIPE
	case heard&credit.ResetEnd != 0 && s.late:
		return syscall.EPIPE
	case heard&credit.ResetEnd != 0:
		return syscall.ECONNRESET
	case s.link.failed() != nil && s.peerLeft():
		return syscall.EPIPE
	}
	return s.link.failed()
}
