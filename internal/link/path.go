package link

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// A link outlives its queue pair if it lost that while both processes live. What has
// arrived is taken from the queue pair first, so each side knows how many messages of
// the other's it has received. Either side requests another queue pair where the other takes
// links up again (reconnect.go), over one pair of cards (route.go) after the other (search.go),
// of which few are tried at once (searched.go). What the two say in its handshake is in request.go. The
// memory of the link goes over to it (move.go); then each side sends again what has not been
// received (retransmit.go). Streams see none of this: they wait.

// path is what a link does without its queue pair. Guarded by Link.mu, but for reconnection,
// which is set before the link is in use.
type path struct {
	reconnection
	requests

	unconfirmed  bool               // the peer may not have the link: this side has answered its request, and heard no more
	work         sync.WaitGroup     // the goroutines of all this; begun with mu held, until the link is closed
	moved        time.Time          // when the link went on over the queue pair that it has; zero: it is the first
	arrival      *arrival           // that waits to be taken up; nil: none
	interrupt    context.CancelFunc // ends what the search does, when there is an arrival; nil: there has been no search
	patientUntil time.Time          // interrupt is not called before
	lostAt       time.Time          // when the link lost its queue pair; read without mu while it seeks another
	stuck        standstill
	settled      sync.Cond // broadcast when the link has another queue pair, or has ended, or unconfirmed is false
	owner        memoryOwner
	lost         []fabric.Endpoint // that the link has had before, for the engine to close
}

// reconnection is where the two sides of a link that has lost its queue pair find each
// other. Set before the link is in use.
type reconnection struct {
	listener *ReconnectListener // where this side takes the link up again, at own.Port; nil: it does not
	own      wire.Reconnect     // what both sides know of the link, and what this side tells
	peers    []netip.AddrPort   // where the peer takes it up: at its address of the link, and of its other cards; none: it does not
	ctx      context.Context    // ends with the link
	cancel   context.CancelFunc // of ctx
}

// standstill is since when one queue pair after the other has lost the same message.
type standstill struct {
	since    time.Time   // the link has gone on over the first of them; zero: nothing was to be sent again
	received wire.Header // by the peer, all that time
}

// resumes reports whether both sides would take the link up again.
func (p *path) resumes() bool { return len(p.peers) > 0 }

// otherCards reports whether both sides had another card when the link was made.
func (p *path) otherCards() bool { return len(p.own.Others) > 0 && len(p.peers) > 1 }

// survivable reports whether the link may outlive the loss of its queue pair for this reason:
// both sides would take it up again, neither has ended it, and it is of use yet. Called
// with mu held.
func (l *Link) survivable(cause error) bool {
	if !l.path.resumes() || l.receive.broken || l.done() {
		return false
	}
	var protocol *ProtocolError
	return cause != errGivenUp && !errors.As(cause, &protocol)
}

// done reports whether neither side has anything more to send: no stream is left, and this side's
// GOAWAY and all its records have been delivered, or the dialer's GOAWAY has come, which travels
// behind the messages that end the streams. Without either, a side that has no stream cannot know
// that its peer has none: the peer may still wait for a FINACK. Called with mu held.
func (l *Link) done() bool {
	peerIsDone := l.leaving.received && !l.active
	return l.streams.live.Load() == 0 && (peerIsDone || l.leaving.delivered(&l.send.slots))
}

// awaitSettled waits until enough returns true, which may change when path.settled is broadcast. Called
// with mu held, which it releases meanwhile.
func (l *Link) awaitSettled(enough func() bool) {
	l.unlock()
	l.lock()
	for !enough() {
		l.path.settled.Wait()
	}
}

// awaitPath waits until a link that has lost its queue pair has another, or has ended.
// Called with mu held, which it releases meanwhile.
func (l *Link) awaitPath() {
	l.awaitSettled(func() bool { return !l.stage.pathless() })
}

// disconnectedLately reports whether the link lacks its queue pair, or has lacked it less than
// closeTimeout ago: the peer may have answered, and the answer could not arrive. Then the caller waits on
// for the answer. The first call sets *since, and the wait ends when it has taken longer
// than a search may, for a peer may break queue pairs again and again. Called with mu held.
func (l *Link) disconnectedLately(since *time.Time) bool {
	if !l.stage.pathless() && l.since(l.path.moved) >= closeTimeout {
		return false
	}
	if since.IsZero() {
		*since = l.now()
	}
	return l.since(*since)-closeTimeout < l.cfg.ResumeTimeout
}

// leavePath ends the search of a link that is closed, and frees its memory if no endpoint has
// it.
func (l *Link) leavePath() {
	l.lock()
	l.path.end()
	l.unlock()
	l.path.close(l.active)
	l.path.work.Wait()
	if l.path.owner.none {
		all, _ := l.registered()
		for _, m := range all {
			m.Free()
		}
	}
}

// listen opens the place where this side takes the link up again, for its hello to tell
// the peer of, with the addresses of this host's other cards than the one at local.
func (p *path) listen(ctx context.Context, r *ReconnectListener, local netip.Addr) error {
	port, err := r.open()
	if err == nil {
		p.listener, p.own.Port, p.own.Others = r, port, r.others(ctx, local)
		p.ctx, p.cancel = context.WithCancel(context.Background())
	}
	return err
}

// notePeer notes where the peer takes the link up again, which its hello tells. A link whose
// number another has does not outlive its queue pair.
func (p *path) notePeer(peer wire.Reconnect, l *Link) {
	if !p.listener.enter(linkKey{p.own.Link, l.active}, l) {
		return
	}
	p.peers = []netip.AddrPort{netip.AddrPortFrom(l.remote.Addr(), peer.Port)}
	for _, a := range peer.Others {
		if a.IsGlobalUnicast() {
			p.peers = append(p.peers, netip.AddrPortFrom(a, peer.Port))
		}
	}
}

// end stops the search for another queue pair. Called with Link.mu held.
func (p *path) end() {
	if p.listener != nil {
		p.cancel()
	}
	if p.arrival != nil {
		go p.arrival.refuse(noSuchLink)
		p.arrival = nil
	}
}

// close ends that requests are brought to a link, which is closed.
func (p *path) close(active bool) {
	if p.listener != nil {
		if p.resumes() {
			p.listener.leave(linkKey{p.own.Link, active})
		}
		p.listener.close()
	}
}

// unmake ends a link that has not been started. No request is brought to it any more.
func (l *Link) unmake() {
	l.lock()
	l.enter(ending)
	l.path.end()
	l.unlock()
	l.path.close(l.active)
}

// endpoint is the one that the link has now.
func (l *Link) endpoint() fabric.Endpoint {
	l.lock()
	defer l.unlock()
	return l.ep
}
