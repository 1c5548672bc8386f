package link

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/netns"
)

// Setup says what a link and its streams are made of: a Config, and what the link gets from its
// process, its network and its queue pair.
type Setup struct {
	Config                     // with its defaults; LinkIdle and ResumeTimeout are 0 where they were negative
	AckTimeout   time.Duration // of the queue pair
	Retries      int           // of the queue pair
	ProbeTimeout time.Duration // that a device may take to complete a probe
	RemoteMemory int           // that may be registered for rings, in bytes, one of RecvBuffer at least

	Network   string             // for Info and Totals
	Proof     *Proof             // nil: the request asks for none
	Acceptor  Acceptor           // of streams that the peer begins; nil takes none
	Namespace netns.Namespace    // of the addresses
	Addresses *Addresses         // of the network's connections; nil: whatever the fabric has
	Budget    *budget.Budget     // of what is registered
	Reconnect *ReconnectListener // listens for the peer's requests for another queue pair; nil: streams do not wait for one
}

// NewSetup returns the setup of a link with a Config, which may be nil, or the error of
// Validate.
func NewSetup(c *Config) (Setup, error) {
	d, err := c.withDefaults()
	if err != nil {
		return Setup{}, err
	}
	d.LinkIdle, d.ResumeTimeout = max(d.LinkIdle, 0), max(d.ResumeTimeout, 0)
	s := Setup{Config: d, AckTimeout: AckTimeout, Retries: Retries, ProbeTimeout: probeTimeout, Budget: budget.Process}
	if !d.Dedicated {
		s.RemoteMemory = sharedMemory
	}
	return s, nil
}

// probeTimeout is as long as the slowest device takes to give up a peer. Soft-RoCE may never
// complete a probe: when the interface below keeps the packets it was given, a repetition finds
// no room, and no timer is set for the next.
const probeTimeout = 4 * AckTimeout * (Retries + 1)

// idle is how long the link stays without streams; 0: it leaves with its last stream.
func (c *Setup) idle() time.Duration {
	if c.Dedicated {
		return 0
	}
	return c.LinkIdle
}

// Proof is a TCP connection that shows to the dialer of a link that TCP leads to the listener
// of the link, too: see docs/auto.md.
type Proof struct {
	Port uint16 // of the dialer, which its request names

	// Connect connects TCP. The dialer calls it when the listener has answered, and confirms
	// the link if it succeeds. The listener has none.
	Connect func() error

	// Verify waits until the link, which is up, is proven, or returns why it is not. ended is
	// closed when the link ends.
	Verify func(ctx context.Context, ended <-chan struct{}) error
}

// Link is a queue pair between two processes and the streams on it. Each of its parts
// has a type of its own, with what belongs to it; they are here together, under one lock.
type Link struct {
	ep     fabric.Endpoint // changes in resume alone
	cfg    Setup
	limits fabric.Limits
	active bool // this side dialed, and opens the streams
	bubble bool // made in one of testing/synctest, where alone its channels and timers may be used

	local, remote netip.AddrPort // of the first queue pair, by which the link is known

	mu      sync.Mutex  // guards what follows, and ep
	at      time.Time   // see now
	timer   *time.Timer // of tick, from start on
	timerAt time.Time   // when it fires; zero: it is not set
	life
	qp      queuePair
	leaving leaving
	streams streamTable
	ledger  credit.Link
	receive receiveQueue
	send    sendQueue
	unacked retransmitQueue
	path    path
	memory  linkMemory
	watch   watch
	alive   keepAlive
	alarms  alarms
	stats   Stats

	// What List and Totals have when something holds mu.
	told  atomic.Pointer[told]
	asked atomic.Int32 // goroutines of glance
}

// streamTable is the streams on a link. Guarded by Link.mu, but for live, opens and unheard.
type streamTable struct {
	byNumber   []*Stream     // by number; nil where none is
	live       atomic.Int32  // of those; read without mu by a Pool
	lowest     int           // no number below it is free
	unanswered int           // streams that the peer has dialed and that have not been answered
	opens      chan struct{} // one for each that this side has dialed and that has not been answered
	opening    int           // those of opens that are in the table
	unheard    silence       // of the peer, which is to answer those
	owned      int           // streams and buffers whose owner has not closed them
	timedOut   timedOutClose
}

// linkMemory is what a link has registered. Guarded by Link.mu.
type linkMemory struct {
	account   *budget.Account // of all that is registered, and of the device's queues
	fixed     int             // bytes that it has reserved before it carries anything; does not change
	rings     arena
	line      memoryLine
	shrinking shrinking

	registering sync.WaitGroup // calls of register and free; begun while the link is up
}
