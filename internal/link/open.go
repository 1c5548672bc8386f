package link

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/wire"
)

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
		if !errors.Is(err, machine.ErrTaken) || try == tries {
			return s, err
		}
	}
}

// takePlace takes one of the places for streams that are not yet answered, and waits for
// one if there is none.
func (l *Link) takePlace(ctx context.Context) error {
	select {
	case l.opens <- struct{}{}:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.HandshakeTimeout)
	defer cancel()
	select {
	case l.opens <- struct{}{}:
		return nil
	case <-l.gone:
		return machine.ErrGoingAway
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Link) open(ctx context.Context) (s *Stream, err error) {
	if err = ctx.Err(); err == nil {
		s, err = l.beginStream(ctx)
	}
	if err != nil {
		<-l.opens
		return nil, reclaimOn(err, l.holders(err))
	}
	err = s.awaitAnswer(ctx)
	l.lock()
	defer l.unlock()
	if err := s.m.Opened(err); err != nil {
		s.waitsAgain()
		return nil, err
	}
	return s, nil
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

// beginStream begins a stream, and sends its OPEN. It may have to wait for
// memory, until ctx ends.
func (l *Link) beginStream(ctx context.Context) (*Stream, error) {
	l.lock()
	defer l.unlock()
	if err := l.m.MayOpen(); err != nil {
		return nil, err
	}
	held, err := l.awaitRing(ctx)
	if err != nil {
		return nil, err
	}
	if err = l.m.MayOpen(); err == nil { // it may have ended meanwhile
		err = l.m.HasNumber()
	}
	local, ok := netip.AddrPort{}, false
	if err == nil {
		if local, ok = l.cfg.Addresses.choose(l.cfg.Namespace, l.local.Addr(), l.remote); !ok {
			err = os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)
		}
	}
	if err != nil {
		l.m.GiveRing(held)
		return nil, err
	}
	s := l.newStream(l.m.Open(held, local.Port()), local, l.remote)
	l.pollCompletions() // there may be room for the OPEN then
	return s, nil
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

// offered answers a stream that the peer dials, when there is memory for it.
func (l *Link) offered(m *machine.Stream) {
	local, remote := l.local, netip.AddrPortFrom(l.remote.Addr(), m.Port())
	switch {
	case l.m.GoesAway() || l.cfg.Acceptor == nil:
		m.Refuse(wire.RefusedClosed)
	case !l.cfg.Addresses.take(l.cfg.Namespace, local, remote):
		m.Refuse(wire.RefusedTaken)
	default:
		s := l.newStream(m, local, remote)
		l.getInLine(&l.memory.line.beginning, want{try: s.tryToAccept})
	}
}

// tryToAccept answers the peer's OPEN, unless it lacks memory that may yet be registered, or known
// to exist. err is why there is none.
func (s *Stream) tryToAccept(err error) *lack {
	l := s.link
	if err == nil {
		if lacks := l.lacksReach(s.m.PeerRing()); lacks != nil {
			return lacks
		}
	}
	switch {
	case err == machine.ErrGoingAway || l.m.GoesAway(): // meanwhile
		s.m.Refuse(wire.RefusedClosed)
		return nil
	case isFull(err): // the dialer's next link has memory of its own
		reclaimInBackground(l.holders(err))
		s.m.Refuse(wire.RefusedClosed)
		return nil
	case err != nil:
		reclaimInBackground(l.holders(err))
		l.cfg.Acceptor.Short(err)
		s.m.Refuse(wire.RefusedMemory)
		return nil
	}
	held, lacks := l.m.TakeRing()
	if lacks > 0 {
		return &lack{bytes: lacks}
	}
	s.m.Accept(held)
	if reason := l.cfg.Acceptor.Offer(s); reason != 0 {
		s.m.Refuse(reason)
	}
	return nil
}
