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
func (l *Link) Open(ctx context.Context) (*Stream, error) { return l.openWithin(ctx, 0) }

// openWithin is Open, but fails with errSilent once the peer has answered no OPEN for so long,
// this one or others; never if that is 0. If this one is answered later, it is reset then.
func (l *Link) openWithin(ctx context.Context, long time.Duration) (*Stream, error) {
	for try := 1; ; try++ {
		if err := l.takePlace(ctx, long); err != nil {
			return nil, err
		}
		s, err := l.open(ctx, long)
		if !errors.Is(err, machine.ErrTaken) || try == tries {
			return s, err
		}
	}
}

// takePlace takes one of the places for streams that are not yet answered, and waits for
// one if there is none.
func (l *Link) takePlace(ctx context.Context, long time.Duration) error {
	select {
	case l.opens <- struct{}{}:
		return nil
	default:
	}
	ctx, cancel := l.patience(ctx, long)
	defer cancel()
	select {
	case l.opens <- struct{}{}:
		return nil
	case <-l.gone:
		return machine.ErrGoingAway
	case <-ctx.Done():
		return impatience(ctx)
	}
}

func (l *Link) open(ctx context.Context, long time.Duration) (s *Stream, err error) {
	limit := deadline.New()
	defer limit.Set(time.Time{})
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { limit.Set(time.Unix(1, 0)) })
		defer stop()
	}
	l.lock()
	if err = ctx.Err(); err == nil {
		s, err = l.beginStream(ctx, long)
	}
	if err != nil {
		l.unlock()
		<-l.opens
		return nil, reclaimOn(err, l.holders(err))
	}
	defer l.unlock()
	if err := s.m.Opened(s.awaitAnswer(ctx, limit, long)); err != nil {
		s.waitsAgain()
		return nil, err
	}
	return s, nil
}

// awaitAnswer waits for the peer's answer to OPEN, until ctx ends, which makes limit pass, or
// Config.HandshakeTimeout has passed, or the peer has been silent for so long. It releases mu meanwhile.
func (s *Stream) awaitAnswer(ctx context.Context, limit *deadline.Deadline, long time.Duration) error {
	l := s.link
	ends := time.Now().Add(l.cfg.HandshakeTimeout)
	left := l.cfg.HandshakeTimeout
	if long > 0 {
		left = min(left, long)
	}
	for {
		limit.Set(time.Now().Add(left))
		switch { // ctx may have ended before that
		case ctx.Err() != nil:
			return ctx.Err()
		case s.wait(openCall, limit) == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case l.silentFor(long):
			return errSilent
		}
		if left = time.Until(ends); left <= 0 {
			return context.DeadlineExceeded
		}
		if long > 0 {
			left = min(left, long-l.unheard.lasted())
		}
	}
}

// beginStream begins a stream, whose OPEN unlock sends. It may have to wait for
// memory, until ctx ends, and releases mu meanwhile.
func (l *Link) beginStream(ctx context.Context, long time.Duration) (*Stream, error) {
	if err := l.m.MayOpen(); err != nil {
		return nil, err
	}
	held, err := l.awaitRing(ctx, long)
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
	case err != nil && isFull(err): // the dialer's next link has memory of its own
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
