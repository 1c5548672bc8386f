package machine

import (
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

// Config is what a link decides by.
type Config struct {
	RecvBuffer    int           // largest size of a ring, in bytes
	SendBuffer    int           // largest size of the staging memory, in bytes
	FirstStaging  int           // its size at first
	SendQueue     int           // work requests that may be outstanding
	RecvQueue     int           // data messages that the peer may have under way
	Inline        int           // bytes that a work request may carry by itself
	SharesMemory  bool          // a post itself puts the bytes where the peer reads them
	Dedicated     bool          // the link carries one stream
	KeepAlive     time.Duration // longest idle time before the peer's device is probed; 0 or less: it is not
	LinkIdle      time.Duration // that the link stays without streams
	ResumeTimeout time.Duration // that streams wait for another queue pair
	ProbeTimeout  time.Duration // that a device may take to complete a probe

	// Reaches reports whether it is known that this side may write to a ring of the peer's.
	Reaches func(p wire.RingPlace) bool
}

// The sizes, in bytes, of the ring that a stream begins with on a link that others share, and at most of the memory
// registered at a time for such.
const (
	FirstRing = 16 << 10
	SlabSize  = 2 << 20
)

// FirstRing is the size of the ring that a stream of this side's begins with.
func (c *Config) FirstRing() int {
	if c.Dedicated {
		return c.RecvBuffer
	}
	return min(FirstRing, c.RecvBuffer)
}

// slabSize is the largest size of the memory that is registered at a time for more.
func (c *Config) slabSize() int {
	if c.Dedicated {
		return c.RecvBuffer
	}
	return SlabSize
}

// idle is how long the link stays without streams; 0: it leaves with its last stream.
func (c *Config) idle() time.Duration {
	if c.Dedicated {
		return 0
	}
	return c.LinkIdle
}

// Link is one end of a link. Each of its parts has a type of its own, with what belongs to it.
type Link struct {
	Wants
	cfg    Config
	clock  func() time.Time
	at     time.Time // see now
	timed  bool      // at is of what the link is told now
	active bool      // this side dialed, and opens the streams

	life
	qp        queuePair
	goingAway goingAway
	streams   streamTable
	ledger    credit.Link
	receive   receiveQueue
	send      sendQueue
	unacked   retransmitQueue
	path      path
	rings     ring.Arena
	grown     []*Stream // whose rings may be larger than at first
	alive     keepAlive
	alarms    alarms
	stats     Stats
}

// Wants is what a link wants done. Who does it takes it out.
type Wants struct {
	Receives int       // to be posted, before anything else is
	Touched  []*Stream // whose calls may have become ready

	More        bool      // something of what follows has come, or Stage, Live or Unheard has changed
	Offered     []*Stream // that the peer has dialed: for Accept or Refuse
	Named       []*Stream // of whose ring at the peer it is to be known that it is there: for Reached
	Growing     []*Stream // that want a larger ring: for Grow
	StagingFull bool      // the staging memory is to grow: for GrowStaging
	Forgotten   []*Stream // whose addresses are free
	Returned    []*Loan   // buffers that are their owners' again
	Answered    int       // streams of Open that the peer has answered, or that need no answer any more

	Trim    bool // slabs with nothing in them are to be freed: see ring.Arena.TakeEmpty
	Called  bool // there may be more to take or to send at once
	Watched bool // somebody is to notice the next completion, whoever waits
	Served  bool // data or CREDIT has come
}

// streamTable is the streams on a link.
type streamTable struct {
	byNumber   []*Stream // by number; nil where none is
	live       int       // of those
	lowest     int       // no number below it is free
	unanswered int       // streams that the peer has dialed and that have not been answered
	opening    int       // streams of Open that have not been answered
	unheard    time.Time // since when the peer has answered none of those; zero: there are none
	owned      int       // streams and buffers whose owner has not closed them
	timedOut   timedOutClose
}

// path is what a link knows of the ways to the peer.
type path struct {
	resumes    bool      // both sides would take the link up again
	otherCards bool      // both sides had another card when the link was made
	moved      time.Time // when the link went on over the queue pair that it has; zero: it is the first
	lostAt     time.Time // when the link lost its queue pair
	stuck      standstill
}

// New returns a link with staging memory of FirstStaging bytes, and behind them ControlMemory. The receives
// of its queue pair have been posted. Between two calls of Begin the clock is read once at most.
func New(cfg Config, staging fabric.Memory, clock func() time.Time) *Link {
	return &Link{
		cfg:   cfg,
		clock: clock,
		rings: ring.NewArena(cfg.slabSize(), wire.MinRing),
		send:  newSendQueue(staging, &cfg),
		qp:    queuePair{posted: cfg.RecvQueue + credit.LinkControlReceives},
	}
}

// Begin notes that time has passed: what is told from now on happens at another time.
func (l *Link) Begin() { l.timed = false }

// now is the time at which what the link is told happens.
func (l *Link) now() time.Time {
	if !l.timed {
		l.at, l.timed = l.clock(), true
	}
	return l.at
}

// since is how long a time is past.
func (l *Link) since(t time.Time) time.Duration { return l.now().Sub(t) }

// Dials says that this side dials the link.
func (l *Link) Dials() { l.active = true }

// Hear takes what the peer's hello says of its side of the link.
func (l *Link) Hear(peer wire.Hello, held wire.RingPlace) {
	l.ledger = credit.NewLink(l.cfg.RecvQueue, peer.Receives)
	l.send.control.target = held
}

// OutlivesQueuePairs says that both sides would take the link up again, and whether they have other cards.
func (l *Link) OutlivesQueuePairs(otherCards bool) {
	l.path.resumes, l.path.otherCards = true, otherCards
}

// Start sets the link to work.
func (l *Link) Start() {
	if l.cfg.KeepAlive > 0 {
		l.alarms.set(keepAliveAlarm, l.now().Add(l.cfg.KeepAlive/2))
	}
	l.Watched = true
}

// Live is how many streams the link carries.
func (l *Link) Live() int { return l.streams.live }

// Owned is how many streams and buffers their owners have not closed.
func (l *Link) Owned() int { return l.streams.owned }

// Unheard is since when the peer has answered none of the streams that Open has dialed; zero if there are none.
func (l *Link) Unheard() time.Time { return l.streams.unheard }

// Slots is how many work requests the link has room for, and how many of those have not completed.
func (l *Link) Slots() (depth, outstanding int) {
	return l.send.slots.Depth(), l.send.slots.Outstanding()
}

// LostAt is when the link lost its queue pair, while it has none.
func (l *Link) LostAt() time.Time { return l.path.lostAt }

// MovedAt is when the link went on over the queue pair that it has; zero if it is the first.
func (l *Link) MovedAt() time.Time { return l.path.moved }
