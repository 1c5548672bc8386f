package link

import (
	"context"
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
// received (package machine). Streams see none of this: they wait.

// path is what a link does without its queue pair. Guarded by Link.mu, but for reconnection,
// which is set before the link is in use.
type path struct {
	reconnection
	requests

	unconfirmed  bool               // the peer may not have the link: this side has answered its request, and heard no more
	work         sync.WaitGroup     // the goroutines of the link but its engine; none begins once it is closed
	arrival      *arrival           // that waits to be taken up; nil: none
	interrupt    context.CancelFunc // ends what the search does, when there is an arrival; nil: there has been no search
	patientUntil time.Time          // interrupt is not called before
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

// resumes reports whether both sides would take the link up again.
func (p *path) resumes() bool { return len(p.peers) > 0 }

// endSearch ends the search of a link that is closed, and frees its memory if no endpoint has
// it.
func (l *Link) endSearch() {
	l.lock()
	l.path.end()
	l.unlock()
	l.path.close(l.active)
	l.path.work.Wait()
	l.lock()
	none := l.path.owner.none
	all, _ := l.registered()
	l.unlock()
	if none {
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
	if !p.listener.enter(linkID{p.own.Link, l.active}, l) {
		return
	}
	p.peers = []netip.AddrPort{netip.AddrPortFrom(l.remote.Addr(), peer.Port)}
	for _, a := range peer.Others {
		if a.IsGlobalUnicast() {
			p.peers = append(p.peers, netip.AddrPortFrom(a, peer.Port))
		}
	}
	l.m.OutlivesQueuePairs(len(p.own.Others) > 0 && len(p.peers) > 1)
}

// end stops the search for another queue pair.
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
			p.listener.remove(linkID{p.own.Link, active})
		}
		p.listener.close()
	}
}

// unmake ends a link that has not been started. No request is brought to it any more.
func (l *Link) unmake() {
	l.lock()
	l.m.NeverStarted()
	close(l.gone)
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
