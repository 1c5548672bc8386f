package link

import (
	"context"
	"errors"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/wire"
)

// Before a stream writes to a ring of the peer's, the endpoint makes sure that it may. On one host
// it asks the kernel for that, and the peer decides how long the answer takes: so a link that is up
// asks without its lock, where it registers memory (register.go).

// reach makes sure that this side may write to a ring of the peer's.
func reach(ctx context.Context, ep fabric.Endpoint, p wire.RingPlace) error {
	err := ep.Reach(ctx, p.Addr, p.RKey, p.Size)
	if err == nil || errors.Is(err, syscall.ENOMEM) || ctx.Err() != nil {
		return err
	}
	return &ProtocolError{Reason: "a ring that is not there: " + err.Error()}
}

// lacksReach is that the endpoint has to look whether it may write to a ring, or nil.
func (l *Link) lacksReach(p wire.RingPlace) *lack {
	if l.ep.Reaches(p.Addr, p.RKey, p.Size) {
		return nil
	}
	return &lack{ring: p}
}

// reaching is the want of a stream to write to what the peer has named.
func (l *Link) reaching(s *machine.Stream) want {
	return want{try: func(err error) *lack {
		if err != nil {
			return nil
		}
		if lacks := l.lacksReach(s.PeerRing()); lacks != nil {
			return lacks
		}
		s.Reached()
		return nil
	}}
}

// look is reach for a link that is up, and ends the link if it fails: the peer may take as long as
// for a handshake. It releases mu meanwhile.
func (l *Link) look(p wire.RingPlace) error {
	ctx, cancel := context.WithTimeout(context.Background(), l.cfg.HandshakeTimeout)
	defer cancel()
	ep := l.ep
	l.unlock()
	err := reach(ctx, ep, p)
	l.lock()
	switch {
	case err == nil:
		return nil
	case l.m.Stage() >= machine.Ended: // meanwhile
	case ctx.Err() != nil:
		l.m.Fail(&machine.LostError{Errno: syscall.ETIMEDOUT, Reason: errLateRing})
	default:
		l.m.BrokenBy(err)
	}
	return machine.ErrGoingAway
}

var errLateRing = errors.New("the kernel has not told whether the peer's memory exists: the peer holds it up")
