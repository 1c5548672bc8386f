package link

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// A link outlives its queue pair if it lost that while both processes live. What has
// arrived is taken from the queue pair first, so each side knows how many messages of
// the other's it has received. The link goes on over its standby (standby.go), if that
// is sound; or else the side that dialed the link dials another queue pair, to where the
// other side takes links up again (returns.go), over one pair of cards (route.go) after
// the other (search.go), in turn with other links (turns.go). What the two say in its
// handshake is in request.go. The memory of the link goes over to it (move.go); then each
// side sends again what has not been received (log.go). Streams see none of this: they
// wait.

// path is what a link does without its queue pair. Guarded by Link.mu, but for what
// is set before the link is in use.
type path struct {
	// Set before the link is in use.
	returns *Returns           // where this side takes the link up again, at own.Port; nil: it does not
	own     wire.Return        // what both sides know of the link, and what this side tells
	peers   []netip.AddrPort   // where the peer takes it up: at its address of the link, and of its other cards; none: it does not
	life    context.Context    // that of the link
	endLife context.CancelFunc // called when it has ended

	work      sync.WaitGroup // the goroutines of all this; begun with mu held, until the link is closed
	moved     time.Time      // when the link went on over the queue pair that it has; zero: it is the first
	attempt   uint64         // the last that this side has made, or taken
	over      uint64         // the one that has made the queue pair; 0: it is the first
	void      uint64         // the last that came to nothing here
	arrivals  chan arrival
	expecting bool // one waits for its turn to be sent to arrivals
	search    search
	settled   chan struct{} // see awaitPath; nil if nobody waits
	custody   custody
	lost      []fabric.Endpoint // that the link has had before, for the engine to close
	standby   *standby
	making    bool // of a standby is under way
}

// resumes says whether both sides would take the link up again.
func (p *path) resumes() bool { return len(p.peers) > 0 }

// passing says whether the link may outlive the loss of its queue pair, for this
// reason: it is not that either side has ended it, and there is something to go on
// with. Called with mu held.
func (l *Link) passing(cause error) bool {
	if !l.path.resumes() || l.forced || l.receive.broken || l.done() {
		return false
	}
	var protocol *ProtocolError
	return !errors.Is(cause, net.ErrClosed) && !errors.As(cause, &protocol)
}

// done says whether neither side has anything more to say to the other: no stream is
// left, and GOAWAY, which comes behind what ended them, has come here or is there. A
// side without a stream cannot know that its peer has none either, which may still
// lack a FINACK. Called with mu held.
func (l *Link) done() bool {
	g := &l.leaving
	return l.live.Load() == 0 && (g.heard || g.sent > 0 && l.send.slots.Completed(g.sent))
}

// awaitPath waits until it is settled whether a link without a queue pair gets another.
// Called with mu held, which it releases meanwhile.
func (l *Link) awaitPath() {
	for l.pathless() {
		if l.path.settled == nil {
			l.path.settled = make(chan struct{})
		}
		settled := l.path.settled
		l.mu.Unlock()
		<-settled
		l.mu.Lock()
	}
}

// settlePath has those go on who wait for that. Called with mu held.
func (p *path) settlePath() {
	if p.settled != nil {
		close(p.settled)
		p.settled = nil
	}
}

// pathless says whether the link has lost its queue pair, and may have another yet. Called
// with mu held.
func (l *Link) pathless() bool { return l.stage == draining && !l.final || l.stage == seeking }

// outOfTouch says whether the peer may have answered and could not be heard, a moment ago
// at least. So it is waited for, since when *since comes to say, but no longer than a search
// takes: it may break queue pairs again and again. Called with mu held.
func (l *Link) outOfTouch(since *time.Time) bool {
	if !l.pathless() && time.Since(l.path.moved) >= patience {
		return false
	}
	if since.IsZero() {
		*since = time.Now()
	}
	return time.Since(*since) < l.cfg.Resume+patience
}

// leavePath ends all that, and frees the memory of a link that has no endpoint for it.
// Called when the link is closed.
func (l *Link) leavePath() {
	l.path.close(l.active)
	l.path.work.Wait()
	l.dropStandby()
	if l.path.custody.homeless {
		all, _ := l.registered()
		for _, m := range all {
			m.Free()
		}
	}
}

// takesUp has this side take the link up again, and tell the peer of its other cards
// than the one with the given address.
func (p *path) takesUp(r *Returns, local netip.Addr) error {
	port, err := r.open()
	if err == nil {
		p.returns, p.own.Port, p.own.Others = r, port, r.others(local)
		p.arrivals = make(chan arrival)
		p.life, p.endLife = context.WithCancel(context.Background())
	}
	return err
}

// meet takes note of where the peer takes the link up again, by what both know of it. A
// link with the number of another does not outlive its queue pair.
func (p *path) meet(peer wire.Return, l *Link) {
	if !p.returns.reserve(returnKey{p.own.Link, l.active}) {
		return
	}
	p.peers = []netip.AddrPort{netip.AddrPortFrom(l.remote.Addr(), peer.Port)}
	for _, a := range peer.Others {
		if a.IsGlobalUnicast() {
			p.peers = append(p.peers, netip.AddrPortFrom(a, peer.Port))
		}
	}
}

// start has requests for the link brought to it, which now can deal with them. Called
// with mu held.
func (p *path) start(l *Link) {
	if p.resumes() {
		p.returns.enter(returnKey{p.own.Link, l.active}, l)
	}
}

// end stops the search for another queue pair, and whatever is done for a standby.
func (p *path) end() {
	if p.returns != nil {
		p.endLife()
	}
}

// close ends all that, for a link that is no more.
func (p *path) close(active bool) {
	if p.returns != nil {
		p.endLife()
		if p.resumes() {
			p.returns.leave(returnKey{p.own.Link, active})
		}
		p.returns.close()
	}
}
