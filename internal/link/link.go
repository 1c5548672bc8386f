package link

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/netns"
)

// Setup says what a link and its streams are made of: a Config, and what the link gets from its
// process, its network and its queue pair.
type Setup struct {
	Config                     // with its defaults; LinkIdle and ResumeTimeout are 0 where they were negative
	ProbeTimeout time.Duration // that a device may take to complete a probe
	FirstStaging int           // size of the staging memory at first, in bytes, if SendBuffer is not less
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
	s := Setup{Config: d, FirstStaging: firstStaging, ProbeTimeout: slowest * d.AckTimeout * time.Duration(d.Retries+1), Budget: budget.Process}
	if !d.Dedicated {
		s.RemoteMemory = sharedMemory
	}
	return s, nil
}

// slowest is by how much a device may wait longer for an acknowledgement than it is told (InfiniBand
// specification, 9.7.6.1.3). What takes longer than such a device takes to give up a peer, never
// completes: on soft-RoCE, when the interface below keeps the packets it was given, a repetition
// finds no room, and no timer is set for the next.
const slowest = 4

// machine is what the machine of a link decides by, whose device grants so much.
func (c *Setup) machine(granted fabric.Limits) machine.Config {
	return machine.Config{
		RecvBuffer:    c.RecvBuffer,
		SendBuffer:    c.SendBuffer,
		FirstStaging:  c.firstStaging(),
		SendQueue:     c.SendQueue,
		RecvQueue:     c.RecvQueue,
		Inline:        granted.Inline,
		SharesMemory:  granted.SharesMemory,
		Dedicated:     c.Dedicated,
		KeepAlive:     c.KeepAlive,
		LinkIdle:      c.LinkIdle,
		ResumeTimeout: c.ResumeTimeout,
		ProbeTimeout:  c.ProbeTimeout,
	}
}

// firstRing is the size of the ring that a stream of this side's begins with.
func (c *Setup) firstRing() int {
	m := c.machine(fabric.Limits{})
	return m.FirstRing()
}

// firstStaging is the size of the staging memory at first.
func (c *Setup) firstStaging() int { return min(c.FirstStaging, c.SendBuffer) }

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

// Link is a queue pair between two processes and the streams on it: the driver of its machine, which decides.
type Link struct {
	ep     fabric.Endpoint // changes in goOn alone
	cfg    Setup
	limits fabric.Limits
	active bool // this side dialed, and opens the streams
	bubble bool // made in one of testing/synctest, where alone its channels and timers may be used

	local, remote netip.AddrPort // of the first queue pair, by which the link is known

	mu          sync.Mutex    // guards what follows, and ep
	m           *machine.Link // from prepare on
	timer       *time.Timer   // of tick, from start on
	timerAt     time.Time     // when it fires; zero: it is not set
	watch       watch
	completions [machine.MaxBatch]fabric.Completion // scratch of pollCompletions
	life
	memory linkMemory
	path   path

	buffers map[*Buffer]struct{} // that are not freed; guarded by mu
	opens   chan struct{}        // one for each stream of Open that has not been answered
	live    atomic.Int32         // streams; read without mu by a Pool
	unheard silence              // of the peer, which is to answer those

	// What List and Totals have when something holds mu.
	told  atomic.Pointer[told]
	asked atomic.Int32 // goroutines of glance
}

// remoteMemory is how many bytes may be registered for rings.
func (c *Setup) remoteMemory() int { return max(c.RemoteMemory, c.RecvBuffer) }
