package machine

import (
	"fmt"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// KeysID is the number of the work requests with the keys of this side, on a queue pair that the link is about to
// have. The last of them may complete when it has it. A link never has so many work requests as fabric.MaxID.
const KeysID = fabric.MaxID

// Snapshot is what this side has received, which it tells the peer before the link goes on.
func (l *Link) Snapshot() wire.Header {
	got := l.ledger.Received()
	return wire.Header{Data: got.Data, Records: got.Records}
}

// HasReceived reports whether the peer has sent anything.
func (l *Link) HasReceived() bool { return l.ledger.Received() != credit.Totals{} }

// Exchange is what the two sides have told each other of a link that goes on over another queue pair.
type Exchange struct {
	Received wire.Header  // by the peer
	Own      wire.Regions // the keys of this side's memory there
	Peer     wire.Regions // and of the peer's
	Posted   int          // receives
	UnderWay int          // work requests with KeysID
}

// standstill is since when one queue pair after the other has lost the same message.
type standstill struct {
	since    time.Time   // the link has gone on over the first of them; zero: nothing was to be sent again
	received wire.Header // by the peer, all that time
}

// Adopt has the link go on over another queue pair: what the peer has not received is sent again.
func (l *Link) Adopt(x Exchange) error {
	if l.stage != Seeking {
		return ErrGone
	}
	if err := l.ledger.Resume(credit.Totals{Data: x.Received.Data, Records: x.Received.Records}); err != nil {
		return Breach(err)
	}
	if err := l.trimAcknowledged(); err != nil {
		return Breach(err)
	}
	if l.lostBytes() {
		return fmt.Errorf("%w: bytes that its device had acknowledged are lost", ErrGone)
	}
	if err := l.checkProgress(x.Received); err != nil {
		return err
	}
	l.sendAgain(&x)
	l.stats.Moves++
	l.path.moved = l.now()
	l.enter(Up)
	l.cause = nil
	l.qp = queuePair{posted: x.Posted}
	l.Receives = 0
	l.streams.timedOut = timedOutClose{} // nothing could arrive meanwhile
	l.freeStaging()                      // of what needs not be sent again, for there may be nothing that completes
	for _, s := range l.Streams() {
		s.touch()
	}
	return nil
}

// checkProgress ends a search that has found another queue pair, if those before it have all
// lost the same message, for as long as a search may take: this one would lose it, too. The
// time begins anew when the peer has received more.
func (l *Link) checkProgress(received wire.Header) error {
	switch stuck := &l.path.stuck; {
	case l.unacked.len() == 0:
		*stuck = standstill{}
	case stuck.since.IsZero() || received != stuck.received:
		*stuck = standstill{l.now(), received}
	case l.since(stuck.since) > l.cfg.ResumeTimeout:
		l.path.lostAt = stuck.since
		return &stuckError{len(l.unacked.at(0).data)}
	}
	return nil
}
