package machine

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

// ErrGoingAway reports a link on which no stream can begin any more.
var ErrGoingAway = errors.New("the link is closing")

// ErrNumbers reports that all numbers of a link's streams are in use.
var ErrNumbers = fmt.Errorf("%d streams on one link: %w", wire.MaxStreams, syscall.EMFILE)

// ErrTaken reports that the peer knows each of the ports that were tried as another
// connection's from this host.
var ErrTaken = &LostError{syscall.EADDRNOTAVAIL, errors.New("all ports that were tried are used by other connections of this host")}

// First begins the stream that the link is dialed for: the request for the link is its OPEN.
func (l *Link) First(held ring.Piece) *Stream {
	s := l.addStream(0, credit.NewStream(held.Size()), held)
	s.ledger.SendRecord(credit.OpenRecord)
	return s
}

// FirstAnswered takes the answer to that request.
func (s *Stream) FirstAnswered(r *wire.Record) error {
	if err := s.ledger.ReceiveRecord(r.Type, uint64(r.Ring.Size)); err != nil {
		return NotTaken(err)
	}
	s.peer = r.Ring
	return nil
}

// AcceptFirst begins the stream that the peer has dialed the link for: the answer is its ACCEPT.
func (l *Link) AcceptFirst(held ring.Piece, peer wire.RingPlace) *Stream {
	s := l.addStream(0, credit.AcceptStream(held.Size(), peer.Size), held)
	s.ledger.SendRecord(credit.AcceptRecord)
	s.peer = peer
	return s
}

// Held is the ring that a request or an answer tells of.
func (l *Link) Held(p ring.Piece) wire.RingPlace { return place(p) }

// MayOpen returns why no stream can begin on the link, or nil.
func (l *Link) MayOpen() error {
	if l.stage != Up || l.goingAway.begun() {
		return ErrGoingAway
	}
	return nil
}

// HasNumber returns an error if no number is free for another stream.
func (l *Link) HasNumber() error {
	if _, ok := l.freeNumber(); !ok {
		return ErrNumbers
	}
	return nil
}

// Open begins another stream, from a port at this side's address. The caller has asked MayOpen and HasNumber.
func (l *Link) Open(held ring.Piece, port uint16) *Stream {
	number, _ := l.freeNumber()
	s := l.addStream(number, credit.NewStream(held.Size()), held)
	s.port = port
	s.opening = true
	if l.streams.opening++; l.streams.opening == 1 {
		l.streams.unheard = l.now()
	}
	s.ledgerChanged()
	return s
}

// answered notes that the peer has answered an OPEN: one of those of Open, or the first of the link, which has no
// place among them.
func (l *Link) answered() {
	if l.streams.opening > 0 {
		l.streams.unheard, l.More = l.now(), true
	}
}

// freeNumber is the smallest number that no stream has.
func (l *Link) freeNumber() (uint32, bool) {
	t := &l.streams
	for t.lowest < len(t.byNumber) && t.byNumber[t.lowest] != nil {
		t.lowest++
	}
	return uint32(t.lowest), t.lowest < wire.MaxStreams
}

// OpenReady reports whether the peer has answered OPEN, and its ring can be written to, or whether it
// will not accept the stream.
func (s *Stream) OpenReady() bool {
	if s.ledger.AwaitsAnswer() {
		return s.link.goingAway.received || s.link.stage >= Ended
	}
	return !s.isAwaiting() || s.link.stage >= Ended
}

// Opened returns nil if the stream is open. Else it orphans the stream and returns why it
// is not open: err, if that is not nil.
func (s *Stream) Opened(err error) error {
	l := s.link
	switch {
	case s.ledger.Stage() == credit.Open && !s.isAwaiting():
		return nil
	case err != nil:
	case s.refusal != 0:
		err = s.refused()
	case s.ledger.EndReceived() != 0:
		err = syscall.ECONNRESET // the peer has accepted it, and then reset it
	case l.goingAway.received:
		err = ErrGoingAway // and so it will be refused
	default:
		err = l.cause
	}
	s.use = Orphaned
	s.ledger.Reset()
	s.discard()
	s.ledgerChanged()
	s.orphan()
	return err
}

// refused is why the peer has refused the stream.
func (s *Stream) refused() error {
	switch s.refusal {
	case wire.RefusedBacklog:
		return &fabric.RefusedError{Reason: wire.Full.Reason, Busy: true}
	case wire.RefusedMemory:
		return &fabric.RefusedError{Reason: "the peer has no memory for another connection", Busy: true}
	case wire.RefusedTaken:
		return ErrTaken
	case wire.RefusedClosed:
		return ErrGoingAway
	case wire.RefusedReset:
		return syscall.ECONNRESET
	}
	return &fabric.RefusedError{Reason: "no reason given"}
}

// receivedOpen takes the beginning of a stream that the peer dials.
func (l *Link) receivedOpen(r *wire.Record) error {
	switch {
	case l.active:
		return fmt.Errorf("OPEN from the side that was dialed")
	case l.goingAway.received:
		return fmt.Errorf("OPEN behind GOAWAY")
	case l.streams.unanswered == wire.MaxOpens:
		return fmt.Errorf("OPEN when %d others are not answered", wire.MaxOpens)
	case int(r.Stream) >= len(l.streams.byNumber)+wire.MaxOpens:
		return fmt.Errorf("OPEN for stream %d when %d numbers were used", r.Stream, len(l.streams.byNumber))
	case int(r.Stream) < len(l.streams.byNumber) && l.streams.byNumber[r.Stream] != nil:
		return fmt.Errorf("OPEN for stream %d, which exists", r.Stream)
	case r.Port == 0:
		return fmt.Errorf("OPEN without a port")
	}
	l.streams.unanswered++
	s := l.addStream(r.Stream, credit.AcceptStream(l.cfg.FirstRing(), r.Ring.Size), ring.Piece{})
	s.peer, s.port = r.Ring, r.Port
	l.Offered = append(l.Offered, s)
	l.More = true
	return nil
}

// Port is the port at the peer from which a stream that is Offered was dialed.
func (s *Stream) Port() uint16 { return s.port }

// Accept answers a stream that is Offered, with a ring for it. Its owner has it from then on: it may be reset before it is
// answered.
func (s *Stream) Accept(held ring.Piece) {
	s.inbox.held = held
	s.refusal = wire.RefusedReset
	s.ledgerChanged()
}

// Refuse refuses a stream that is Offered, and nobody's.
func (s *Stream) Refuse(reason wire.RefuseReason) {
	s.refusal = reason
	s.use = Orphaned
	s.ledger.Reset()
	s.ledgerChanged()
	s.link.Disown()
}

// GoesAway reports whether no stream may begin any more.
func (l *Link) GoesAway() bool { return l.goingAway.begun() }
