package link

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
)

// Config says what a link and its streams are made of. All fields are set.
type Config struct {
	Network      string        // for people; see Info
	RecvBuffer   int           // size of a stream's ring, in bytes: a power of two
	SendBuffer   int           // size of the link's staging memory, in bytes: a power of two
	SendQueue    int           // work requests outstanding
	RecvQueue    int           // receives for data: a multiple of 4
	BusyPoll     time.Duration // that a call polls before it parks; 0: adaptive; negative: never
	KeepAlive    time.Duration // of silence before the peer's device is probed; negative: never
	Handshake    time.Duration // that setting up may take
	Patience     time.Duration // that a device may owe the completion of a probe
	AckTimeout   time.Duration
	Retries      int
	RemoteMemory int            // that may be registered for rings, in bytes, one of RecvBuffer at least
	Proof        uint16         // port of TCP that the request names; 0: it asks for no proof
	Shared       bool           // its streams begin with small rings, which grow
	Idle         time.Duration  // that a link without streams stays; 0: it leaves with its last stream
	Acceptor     Acceptor       // of streams that the peer begins; nil takes none
	Addresses    *Addresses     // of the network's connections; nil: whatever the fabric has
	Budget       *budget.Budget // of what is registered
	Resume       time.Duration  // that streams wait for another queue pair when theirs is lost
	Returns      *Returns       // where the peer comes back to then; nil: they do not wait
	Standby      bool           // have another queue pair stand by, over other cards
}

// stage is how far a link is in its life.
type stage uint8

const (
	up stage = iota
	draining
	seeking // has no queue pair, and seeks another
	ended
	closed
)

// Link is a queue pair between two processes and the streams on it.
type Link struct {
	ep     fabric.Endpoint
	cfg    Config
	limits fabric.Limits
	active bool // this side dialed, and opens the streams

	local, remote netip.AddrPort // of the first queue pair, by which the link is known

	mu        sync.Mutex
	stage     stage
	cause     error         // why it is draining or seeking, or has ended
	final     bool          // for that reason it ends
	over      func()        // see OnEnd
	gone      chan struct{} // closed when it is about to end
	announced bool          // it is
	cut       bool          // the queue pair has been moved to ERR
	abandoned bool          // what one more poll does not find will never come back
	drain     *time.Timer   // of drainTick, once the queue pair is in ERR
	peerGone  bool          // Wait has said so: there is no answer to wait for
	forced    bool          // the endpoint is to be closed whatever it owes
	idle      *time.Timer   // of idleTick, once no stream is owned
	putOff    time.Time     // see outOfTouch; zero: the end of an idle link has not been

	streams    []*Stream     // by number; nil where none is
	live       atomic.Int32  // of those; read without mu by a Pool
	lacksPath  atomic.Bool   // pathless; read so, too
	lowest     int           // no number below it is free
	unanswered int           // streams that the peer has dialed and that have not been answered
	opens      chan struct{} // one for each that this side has dialed and that has not been answered
	owned      int           // streams and buffers whose owner has not closed them
	leaving    leaving
	vain       vain

	ledger  credit.Link
	receive receiveQueue
	send    sendQueue
	log     sentLog
	path    path
	account *budget.Account // of all that is registered, and of the device's queues
	queues  int             // bytes of the latter
	rings   arena
	tidying tidying
	watch   watch
	alive   keepAlive
	stats   Stats // its bytes are those of streams that are over
	down    func(cause error)
	moved   func(i Info, took time.Duration, cause error)
}

// leaving is how far an idle link has come with its GOAWAYs.
type leaving struct {
	due   bool
	sent  uint64 // work requests that complete with ours; 0: not sent
	heard bool
}

// begun says whether no stream may begin any more.
func (g *leaving) begun() bool { return g.due || g.sent > 0 || g.heard }

// vain is how long a Close has waited for the peer in vain.
type vain struct {
	waited time.Duration
	heard  uint64 // messages that the peer had sent before
}

// Traffic counts data, and queue pairs that it has outlived.
type Traffic struct {
	BytesSent        uint64
	BytesReceived    uint64 // read or not
	MessagesSent     uint64 // data messages: work requests with data
	MessagesReceived uint64
	Moves            uint64 // times that a link has gone on over another queue pair
}

func (t *Traffic) add(more Traffic) {
	t.BytesSent += more.BytesSent
	t.BytesReceived += more.BytesReceived
	t.MessagesSent += more.MessagesSent
	t.MessagesReceived += more.MessagesReceived
	t.Moves += more.Moves
}

// addBytes adds what a stream has carried.
func (t *Traffic) addBytes(s *Stream) {
	t.BytesSent += s.ledger.Sent()
	t.BytesReceived += s.ledger.Received()
}

// Stats counts what a link has done.
type Stats struct {
	Traffic
	RecordsSent  uint64 // SENDs with records
	CreditsSent  uint64 // SENDs of link credit alone
	WorkRequests uint64 // posted, of all kinds
	Signaled     uint64 // of those, the signaled ones
	Events       uint64 // times that the engine was woken
	Probes       uint64 // sent: writes of nothing, for keepalive or to have staging memory back
}

// Stats returns a snapshot of the link's counters.
func (l *Link) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counted()
}

// counted is what the link and the streams on it have done. Called with mu held.
func (l *Link) counted() Stats {
	stats := l.stats
	for _, s := range l.streams {
		if s != nil {
			stats.addBytes(s)
		}
	}
	return stats
}

// fail ends the link for the given reason, unless it has ended for another, or has it
// lose its queue pair, if that is all. What has arrived can still be read. Called with
// mu held.
func (l *Link) fail(cause error) {
	passing := l.passing(cause)
	if l.final || l.cause != nil && passing {
		return
	}
	l.cause, l.final = cause, !passing
	switch l.stage {
	case up:
		l.stage = draining
		l.path.search = search{lostAt: time.Now()}
	case seeking:
		l.end()
		return
	}
	l.lacksPath.Store(l.pathless())
	if l.final {
		l.announce()
	}
	l.moveToError()
	l.limitDrain()
	l.ep.Wake() // the engine waits for the flushed receives
}

// announce says that the link is about to end. Called with mu held.
func (l *Link) announce() {
	if l.announced {
		return
	}
	l.announced = true
	close(l.gone)
	if l.over != nil {
		go l.over()
	}
}

// Abort ends the link and all streams on it, which their owners still close.
func (l *Link) Abort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail(net.ErrClosed)
}

// Gone is closed when the link has ended, or nothing more can be sent on it.
func (l *Link) Gone() <-chan struct{} { return l.gone }

// drainTime bounds how long a queue pair in ERR may owe the receives posted to
// it. A device that has failed as a whole takes "to ERR" for done and flushes
// nothing (mlx5), and a completion queue that has failed delivers nothing.
const drainTime = 5 * time.Second

// limitDrain bounds the wait for what the queue pair, now in ERR, gives back.
// Called with mu held.
func (l *Link) limitDrain() {
	if l.drain == nil {
		l.drain = time.AfterFunc(drainTime, l.drainTick)
	}
}

// drainTick ends the wait for what has not come back, and for whoever was to
// say why the queue pair failed.
func (l *Link) drainTick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stage >= seeking || l.drain == nil { // all has come back meanwhile
		return
	}
	l.fail(lost(fabric.ErrQueuePair))
	l.abandoned = true
	l.pollAndSend()
}

// idleTime is how long a link of whose streams none is owned any more may stay: as
// long as the peer may take to end them, or to answer GOAWAY, at least. Called with
// mu held.
func (l *Link) idleTime() time.Duration {
	if l.mayLeave() {
		return l.cfg.Idle
	}
	return max(l.cfg.Idle, patience)
}

// idleTick ends a link of whose streams none is owned any more: with GOAWAY if
// they are over, and at once if the peer, or the device, has not answered.
func (l *Link) idleTick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.owned > 0 || l.stage == closed:
	case l.mayLeave():
		l.goAway()
	case !l.done() && l.outOfTouch(&l.putOff):
		l.idle.Reset(patience) // the peer's streams may not be over; the search ends by itself
	default:
		l.forced = true
		l.fail(net.ErrClosed)
		l.ep.Wake()
	}
}

// Leave has the link leave if it carries no stream.
func (l *Link) Leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mayLeave() {
		l.goAway()
	}
}

// mayLeave says whether the link carries no stream and has not begun to leave.
// Called with mu held.
func (l *Link) mayLeave() bool {
	return l.stage == up && l.live.Load() == 0 && l.owned == 0 && !l.leaving.begun()
}

// goAway tells the peer that the link leaves. Called with mu held, which it may
// release to send.
func (l *Link) goAway() {
	l.leaving.due = true
	l.putOff = time.Time{}
	l.idle.Reset(patience)
	l.trySend()
	l.watchNow()
}

// moveToError moves the queue pair to ERR, at once or when the device has taken
// what is being posted. Called with mu held.
func (l *Link) moveToError() {
	if l.cut || l.send.posting {
		return
	}
	l.cut = true
	if err := l.ep.Disconnect(); err != nil {
		l.fail(lost(err))
		l.receive.posted = 0 // a queue pair that cannot go to ERR flushes nothing
	}
}

// usable says whether the link carries what is on it.
func (l *Link) usable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stage == up
}

// OnEnd has f called when no stream can begin on the link any more.
func (l *Link) OnEnd(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = f
	if l.announced {
		go f()
	}
}

// settle notices the ends: that of an idle link, when both sides have said
// GOAWAY, and that of the queue pair, when nothing more will arrive. Called with
// mu held.
func (l *Link) settle() {
	if g := &l.leaving; l.stage == up && g.heard && g.sent > 0 && l.live.Load() == 0 && l.send.slots.Completed(g.sent) {
		l.fail(net.ErrClosed)
	}
	if l.stage != draining || l.receive.posted > 0 || l.send.posting {
		return
	}
	l.drain.Stop()
	l.drain = nil
	if !l.final && l.passing(l.cause) {
		l.seek()
		return
	}
	l.end()
}

// end has streams on the link told that it has ended. Called with mu held.
func (l *Link) end() {
	l.stage, l.final = ended, true
	l.lacksPath.Store(false)
	l.announce()
	l.path.end()
	l.path.settlePath()
	l.sayDown()
	l.handBack()
	for _, s := range l.streams {
		if s != nil {
			s.wake()
		}
	}
	for _, s := range l.send.ending { // some are in the table no more
		s.wake()
	}
	l.ep.Wake()
}

// OnDown has f called, in a goroutine of its own, when the link carries nothing any
// more: with why, or with nil if it had nothing to carry.
func (l *Link) OnDown(f func(cause error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = f
	if l.stage >= ended {
		l.sayDown()
	}
}

// sayDown is called with mu held.
func (l *Link) sayDown() {
	if l.down == nil {
		return
	}
	cause := l.cause
	if cause == net.ErrClosed || disconnected(cause) && l.leaving.begun() && l.live.Load() == 0 {
		cause = nil
	}
	go l.down(cause)
	l.down = nil
}

// OnMove has f called, in a goroutine of its own, whenever the link goes on over another
// queue pair: with what it is then, how long it was without one, and why it had lost the
// one before.
func (l *Link) OnMove(f func(i Info, took time.Duration, cause error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moved = f
}

// sayMoved is called with mu held.
func (l *Link) sayMoved(cause error) {
	if l.moved != nil {
		go l.moved(l.info(), time.Since(l.path.search.lostAt), cause)
	}
}

// failed says why streams on the link can do nothing any more, or nil. Called
// with mu held.
func (l *Link) failed() error {
	if l.stage < ended {
		return nil
	}
	return l.cause
}
