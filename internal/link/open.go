package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// errLeaving reports a link on which no stream can begin any more.
var errLeaving = errors.New("the link is closing")

// errNumbers reports that all numbers of a link's streams are in use.
var errNumbers = fmt.Errorf("%d streams on one link: %w", wire.MaxStreams, syscall.EMFILE)

// errTaken reports that the peer knows each of the ports that were tried as another
// connection's from this host.
var errTaken = &lostError{syscall.EADDRNOTAVAIL, errors.New("all ports that were tried are used by other connections of this host")}

// firstRing is the size, in bytes, of the ring that a stream begins with on a
// link that others share, and slabSize that of the memory registered for such.
const (
	firstRing = 16 << 10
	slabSize  = 256 << 10
)

// firstRing is the size of the ring that a stream of this side's begins with.
func (c *Setup) firstRing() int {
	if c.Dedicated {
		return c.RecvBuffer
	}
	return min(firstRing, c.RecvBuffer)
}

// slabSize is the size of the memory that is registered for more.
func (c *Setup) slabSize() int {
	if c.Dedicated {
		return c.RecvBuffer
	}
	return slabSize
}

// tries is how many ports, at random, a dial tries for one that no connection of another
// process of this host has. If those have two thirds of all ports, 16 tries would fail for
// one dial in a thousand.
const tries = 128

// Open begins another stream on a link that this side dialed, and returns when
// the peer has accepted it, or ctx ends, or Config.HandshakeTimeout has passed.
func (l *Link) Open(ctx context.Context) (*Stream, error) {
	for try := 1; ; try++ {
		if err := l.takePlace(ctx); err != nil {
			return nil, err
		}
		s, err := l.open(ctx)
		if !errors.Is(err, errTaken) || try == tries {
			return s, err
		}
	}
}

// takePlace takes one of the places for streams that are not yet answered, and waits for
// one if there is none.
func (l *Link) takePlace(ctx context.Context) error {
	select {
	case l.streams.opens <- struct{}{}:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.HandshakeTimeout)
	defer cancel()
	select {
	case l.streams.opens <- struct{}{}:
		return nil
	case <-l.gone:
		return errLeaving
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Link) open(ctx context.Context) (s *Stream, err error) {
	if err = ctx.Err(); err == nil {
		s, err = l.beginStream(ctx)
	}
	if err != nil {
		<-l.streams.opens
		return nil, reclaimOn(err, l.holders(err))
	}
	if err := s.opened(s.awaitAnswer(ctx)); err != nil {
		return nil, err
	}
	return s, nil
}

// opened returns nil if the stream is open. Else it orphans the stream and returns why it
// is not open: err, if that is not nil.
func (s *Stream) opened(err error) error {
	l := s.link
	l.lock()
	defer l.unlock()
	switch {
	case s.ledger.Stage() == credit.Open && !s.reaching:
		return nil
	case err != nil:
	case s.refusal != 0:
		err = s.refused()
	case s.ledger.EndReceived() != 0:
		err = syscall.ECONNRESET // the peer has accepted it, and then reset it
	case l.leaving.received:
		err = errLeaving // and so it will be refused
	default:
		err = l.cause
	}
	s.use = orphaned
	s.ledger.Reset()
	s.discard()
	s.changed()
	l.orphan(s)
	return err
}

// openReady reports whether the peer has answered OPEN, and its ring can be written to, or whether it
// will not accept the stream. Called with mu held.
func openReady(s *Stream) bool {
	if s.ledger.AwaitsAnswer() {
		return s.link.leaving.received || s.link.stage >= ended
	}
	return !s.reaching || s.link.stage >= ended
}

// awaitAnswer waits for the peer's answer to OPEN, until ctx ends or
// Config.HandshakeTimeout has passed.
func (s *Stream) awaitAnswer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.link.cfg.HandshakeTimeout)
	defer cancel()
	limit := deadline.New()
	stop := context.AfterFunc(ctx, func() { limit.Set(time.Unix(1, 0)) })
	defer stop()
	s.link.lock()
	defer s.link.unlock()
	if s.wait(openCall, limit) != nil {
		return ctx.Err()
	}
	return nil
}

// beginStream enters a stream into the table and sends its OPEN. It may have to wait for
// memory, until ctx ends.
func (l *Link) beginStream(ctx context.Context) (s *Stream, err error) {
	l.lock()
	defer l.unlock()
	if l.stage != up || l.leaving.begun() {
		return nil, errLeaving
	}
	held, err := l.awaitRing(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.giveRing(held)
		}
	}()
	if l.stage != up || l.leaving.begun() { // meanwhile
		return nil, errLeaving
	}
	number, ok := l.freeNumber()
	if !ok {
		return nil, errNumbers
	}
	remote := l.remote
	local, ok := l.cfg.Addresses.choose(l.cfg.Namespace, l.local.Addr(), remote)
	if !ok {
		return nil, os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)
	}
	s = l.addStream(number, credit.NewStream(held.size), held)
	s.local, s.remote = local, remote
	s.opening = true
	l.streams.asked()
	s.changed()
	l.pollCompletions() // there may be room for the OPEN then
	return s, nil
}

// freeNumber is the smallest number that no stream has. Called with mu held.
func (l *Link) freeNumber() (uint32, bool) {
	for l.streams.lowest < len(l.streams.byNumber) && l.streams.byNumber[l.streams.lowest] != nil {
		l.streams.lowest++
	}
	return uint32(l.streams.lowest), l.streams.lowest < wire.MaxStreams
}

// refused is why the peer has refused the stream. Called with mu held.
func (s *Stream) refused() error {
	switch s.refusal {
	case wire.RefusedBacklog:
		return &fabric.RefusedError{Reason: wire.Full.Reason, Busy: true}
	case wire.RefusedMemory:
		return &fabric.RefusedError{Reason: "the peer has no memory for another connection", Busy: true}
	case wire.RefusedTaken:
		return errTaken
	case wire.RefusedClosed:
		return errLeaving
	case wire.RefusedReset:
		return syscall.ECONNRESET
	}
	return &fabric.RefusedError{Reason: "no reason given"}
}

// Acceptor decides about the streams that a peer begins on links that this side
// accepted.
type Acceptor interface {
	// Offer takes a stream, or says why not. It is called with the link's lock
	// held: it neither waits nor calls the stream.
	Offer(s *Stream) wire.RefuseReason

	// Short is called in the same way, with why there is no memory for a stream that
	// would have been offered.
	Short(err error)
}

// receivedOpen takes the beginning of a stream that the peer dials. Called with
// mu held.
func (l *Link) receivedOpen(r *wire.Record) error {
	switch {
	case l.active:
		return fmt.Errorf("OPEN from the side that was dialed")
	case l.leaving.received:
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
	local, remote := l.local, netip.AddrPortFrom(l.remote.Addr(), r.Port)
	l.streams.unanswered++
	s := l.addStream(r.Stream, credit.AcceptStream(l.cfg.firstRing(), r.Ring.Size), piece{})
	s.peer = r.Ring
	switch {
	case l.leaving.begun() || l.cfg.Acceptor == nil:
		s.refuse(wire.RefusedClosed)
	case !l.cfg.Addresses.take(l.cfg.Namespace, local, remote):
		s.refuse(wire.RefusedTaken)
	default:
		s.local, s.remote = local, remote
		l.getInLine(&l.memory.line.beginning, s.tryToAccept)
	}
	return nil
}

// tryToAccept answers the peer's OPEN, unless it lacks memory that may yet be registered, or known
// to exist. err is why there is none. Called with mu held.
func (s *Stream) tryToAccept(err error) *lack {
	l := s.link
	var held piece
	if err == nil {
		lacks := l.lacksReach(s.peer)
		if lacks != nil {
			return lacks
		}
		if held, lacks, err = l.memory.rings.take(l.cfg.firstRing()); lacks != nil {
			return lacks
		}
	}
	s.inbox.held = held
	switch {
	case err == errLeaving || l.leaving.begun(): // meanwhile
		s.refuse(wire.RefusedClosed)
		return nil
	case isFull(err): // the dialer's next link has memory of its own
		reclaimInBackground(l.holders(err))
		s.refuse(wire.RefusedClosed)
		return nil
	case err != nil:
		reclaimInBackground(l.holders(err))
		l.cfg.Acceptor.Short(err)
		s.refuse(wire.RefusedMemory)
		return nil
	}
	s.refusal = wire.RefusedReset // should its owner reset it before it is answered
	if reason := l.cfg.Acceptor.Offer(s); reason != 0 {
		s.refuse(reason)
		return nil
	}
	s.changed()
	return nil
}

// refuse refuses a stream that the peer has dialed and nobody owns. Called with mu held.
func (s *Stream) refuse(reason wire.RefuseReason) {
	s.refusal = reason
	s.use = orphaned
	s.ledger.Reset()
	s.changed()
	s.link.streams.owned--
	s.link.startIdleTimer()
}
