package link

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/deadline"
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

// patience is how long a stream whose owner has closed it waits for its peer's
// application to close it too, before it is reset.
const patience = 5 * time.Second

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

// StreamStats counts what a stream has done.
type StreamStats struct {
	Traffic
	BytesWritten    uint64 // accepted by Write, without what was dropped unsent
	CreditsSent     uint64 // CREDIT records
	CreditsReceived uint64
	ReadWaits       uint64 // times that a call waited for something to read
	WriteWaits      uint64 // times that a call waited for room
	Memory          int    // bytes of this end's rings, at the moment
}

// Stats returns a snapshot of the stream's counters. It works after Close.
func (s *Stream) Stats() StreamStats {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	stats := s.stats
	stats.addBytes(s)
	stats.BytesWritten = s.ledger.Accepted()
	stats.ReadWaits, stats.WriteWaits = s.calls[readCall].waits.Load(), s.calls[writeCall].waits.Load()
	stats.Memory = s.inbox.held.size + s.inbox.drained.size + s.inbox.offered.size
	return stats
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

// letGo has the link leave in a while, if nothing of it is owned any more, or at once
// if it has ended. Called with mu held.
func (l *Link) letGo() {
	if l.owned > 0 {
		return
	}
	l.putOff = time.Time{}
	l.idle.Reset(l.idleTime())
	if l.stage != up {
		l.ep.Wake()
	}
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
