package link

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/wire"
)

// Before a stream writes to a ring of the peer's, the endpoint makes sure that it may. On one host
// it asks the kernel for that, and the peer decides how long the answer takes: so a link that is up
// asks without its lock, where it registers memory (register.go). Until it knows, a stream that
// begins is not its owner's yet, and one that goes on writes to the ring that it has.

// reach makes sure that this side may write to a ring of the peer's.
func (l *Link) reach(ctx context.Context, p wire.RingPlace) error {
	err := l.ep.Reach(ctx, p.Addr, p.RKey, p.Size)
	if err == nil || errors.Is(err, syscall.ENOMEM) || ctx.Err() != nil {
		return err
	}
	return &ProtocolError{"a ring that is not there: " + err.Error()}
}

// lacksReach is that the endpoint has to look whether it may write to a ring, or nil. Called with
// mu held.
func (l *Link) lacksReach(p wire.RingPlace) *lack {
	if l.ep.Reaches(p.Addr, p.RKey, p.Size) {
		return nil
	}
	return &lack{ring: p}
}

// look is reach for a link that is up, and ends the link if it fails: the peer may take as long as
// for a handshake. Called with mu held, which it releases meanwhile.
func (l *Link) look(p wire.RingPlace) error {
	ctx, cancel := context.WithTimeout(context.Background(), l.cfg.HandshakeTimeout)
	defer cancel()
	l.unlock()
	err := l.reach(ctx, p)
	l.lock()
	switch {
	case err == nil:
		return nil
	case l.stage >= ended: // meanwhile
	case ctx.Err() != nil:
		l.fail(&lostError{syscall.ETIMEDOUT, errLateRing})
	default:
		l.refuseToTake(err)
	}
	return errLeaving
}

var errLateRing = errors.New("the kernel has not told whether the peer's memory exists: the peer holds it up")

// awaitReach has the stream wait until this side may write to a ring, and then calls reached. If it
// may not, the link ends. Called with mu held.
func (s *Stream) awaitReach(line *queue[attempt], p wire.RingPlace, reached func() error) {
	l := s.link
	s.reaching = true
	l.getInLine(line, func(err error) *lack {
		if err != nil {
			return nil
		}
		if lacks := l.lacksReach(p); lacks != nil {
			return lacks
		}
		s.reaching = false
		if err := reached(); err != nil {
			l.refuseToTake(err)
		}
		return nil
	})
}

// awaitRing has a RING wait for its ring. Called with mu held.
func (s *Stream) awaitRing(r wire.Record) error {
	if s.reaching || s.ledger.Stage() != credit.Open {
		return fmt.Errorf("RING for a stream that is %v, or before the last is taken", s.ledger.Stage())
	}
	s.awaitReach(&s.link.memory.line.growing, r.Ring, func() error {
		if s.ledger.Stage() != credit.Open || s.ledger.EndReceived()&credit.ResetEnd != 0 || s.ledger.Acked() {
			return nil // it has ended meanwhile
		}
		return s.receivedRecord(&r)
	})
	return nil
}
