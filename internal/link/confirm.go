package link

import (
	"context"
	"errors"

	"github.com/ringnet/ringnet/internal/fabric"
)

// The side that dials has a link when it has confirmed the peer's answer. The confirmation may be
// lost with the queue pair. So the side that has answered keeps the link without a queue pair, as one
// that has lost it, until it knows whether the peer has it: path.unconfirmed.

// answer answers the peer's request, and waits until it is confirmed. The peer may have confirmed
// what this side does not see confirmed. If the link can be taken up again, that is left to the
// peer: start has the link wait for it.
func (h *handshake) answer(ctx context.Context, l *Link, hello []byte) error {
	waiting, stop := l.untilRequested(ctx, 0)
	defer stop()
	err := h.ep.Accept(waiting, hello)
	if lost := (*fabric.UnconfirmedError)(nil); !errors.As(err, &lost) || !l.path.resumes() || ctx.Err() == context.Canceled {
		return err
	}
	h.lost = err
	return nil
}

// awaitConfirmation waits until the peer is known to have the link, and returns false if the link
// ends before, or ctx, which ends it. A link that the peer is known to have outlives ctx.
func (l *Link) awaitConfirmation(ctx context.Context) bool {
	stop := context.AfterFunc(ctx, l.giveUp)
	defer stop()
	l.lock()
	defer l.unlock()
	l.awaitSettled(func() bool { return !l.path.unconfirmed || l.m.Stage().Final() })
	return !l.path.unconfirmed
}

// giveUp ends the link, unless the peer is known to have it.
func (l *Link) giveUp() {
	l.lock()
	defer l.unlock()
	if l.path.unconfirmed {
		l.m.GiveUp()
	}
}

// confirmed notes that the peer has the link.
func (l *Link) confirmed() {
	l.path.unconfirmed = false
	l.settled.Broadcast()
}

// awaitRequest waits for a request of the peer's. It is for a link that the peer may not have: if
// it has, it will make one, and if not, this side is not to ask for the link at addresses that
// nobody may have given who can be reached there.
func (l *Link) awaitRequest(ctx context.Context) error {
	waiting, stop := l.untilRequested(ctx, 0)
	defer stop()
	<-waiting.Done()
	return waiting.Err()
}

func (l *Link) isUnconfirmed() bool {
	l.lock()
	defer l.unlock()
	return l.path.unconfirmed
}
