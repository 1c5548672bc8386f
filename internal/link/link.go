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

// Config says what a link and its streams are made of. All fields are set. It is as flat
// as rconn.Config, from which it is made, field by field.
type Config struct {
	Network      string        // for Info and Totals
	RecvBuffer   int           // size of a stream's ring, in bytes: a power of two
	SendBuffer   int           // size of the link's staging memory, in bytes: a power of two
	SendQueue    int           // work requests outstanding
	RecvQueue    int           // receives for data: a multiple of 4
	BusyPoll     time.Duration // that a call polls before it parks; 0: adaptive; negative: never
	KeepAlive    time.Duration // longest idle time before the peer's device is probed; negative: never
	Handshake    time.Duration // that setting up may take
	Patience     time.Duration // that a device may take to complete a probe
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
	Returns      *Returns       // listens for the peer's requests then; nil: they do not wait
	Standby      bool           // have another queue pair stand by, over other cards
}

// Link is a queue pair between two processes and the streams on it. Each of its parts
// has a type of its own, with what belongs to it; they meet here, under one lock.
type Link struct {
	ep     fabric.Endpoint // changes in resume alone
	cfg    Config
	limits fabric.Limits
	active bool // this side dialed, and opens the streams

	local, remote netip.AddrPort // of the first queue pair, by which the link is known

	mu sync.Mutex // guards what follows, and ep
	life
	qp      queuePair
	leaving leaving
	streams streamTable
	ledger  credit.Link
	receive receiveQueue
	send    sendQueue
	log     sentLog
	path    path
	memory  linkMemory
	watch   watch
	alive   keepAlive
	stats   Stats // its bytes are those of streams that are over
}

// streamTable is the streams on a link. Guarded by Link.mu, but for live and opens.
type streamTable struct {
	byNumber   []*Stream     // by number; nil where none is
	live       atomic.Int32  // of those; read without mu by a Pool
	lowest     int           // no number below it is free
	unanswered int           // streams that the peer has dialed and that have not been answered
	opens      chan struct{} // one for each that this side has dialed and that has not been answered
	owned      int           // streams and buffers whose owner has not closed them
	timedOut   timedOutClose
}

// linkMemory is what a link has registered. Guarded by Link.mu.
type linkMemory struct {
	account *budget.Account // of all that is registered, and of the device's queues
	queues  int             // bytes of the latter
	rings   arena
	line    memoryLine
	tidying tidying

	registering sync.WaitGroup // calls of register; begun while the link is up
}
