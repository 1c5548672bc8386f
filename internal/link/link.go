package link

import (
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
