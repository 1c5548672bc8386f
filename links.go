package ringnet

// Which connections share a link, and what this package tells about links and memory.

import (
	"context"
	"net/netip"
	"sync"
	"weak"

	"github.com/ringnet/ringnet/internal/bubble"
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/netns"
	"github.com/ringnet/ringnet/rconn"
)

// linkKey is what dials must have in common to share a link.
type linkKey struct {
	network       string
	namespace     netns.Namespace
	fabric        fabric.Fabric // nil with trust
	local, remote netip.AddrPort
	config        link.Config          // with its defaults
	trust         weak.Pointer[Dialer] // the one whose TrustUser decides; nil without TrustUser
	proven        bool                 // dialed by auto, with the proof that TCP leads to the same listener
	bubble        bool                 // made in one of testing/synctest
}

// links are the links that this process has dialed and on which more connections may begin.
var links link.Pool[linkKey]

// reconnect has the listeners to which peers come back when a link has lost its queue pair, for
// each fabric whose queue pairs may be lost while both processes live.
var reconnect sync.Map // of *link.ReconnectListener by fabric.Fabric

// completeLink sets what a link gets from its network.
func completeLink(cfg *link.Setup, n network, f fabric.Fabric) {
	cfg.Network, cfg.Namespace, cfg.Addresses = n.name, n.namespace, n.addresses
	if cfg.ResumeTimeout > 0 && !n.oneHost && n.namespace == 0 { // goroutines look for another queue pair
		r, _ := reconnect.LoadOrStore(f, &link.ReconnectListener{Fabric: f})
		cfg.Reconnect = r.(*link.ReconnectListener)
	}
}

// setup returns what the links that d dials are made of.
func (d *Dialer) setup(n network, f fabric.Fabric) (link.Setup, error) {
	cfg, err := link.NewSetup((*link.Config)(d.Config))
	if err == nil {
		completeLink(&cfg, n, f)
	}
	return cfg, err
}

// linkKey returns the key of the links that d may share.
func (d *Dialer) linkKey(f fabric.Fabric, local, remote netip.AddrPort, cfg link.Setup, proven bool) linkKey {
	key := linkKey{
		network: cfg.Network, namespace: cfg.Namespace, fabric: f, local: local, remote: remote,
		config: cfg.Config, proven: proven, bubble: bubble.In(),
	}
	if d.TrustUser != nil {
		key.fabric, key.trust = nil, weak.Make(d) // each dial opens a fabric of its own, which asks d
	}
	return key
}

// dialLink connects to an address, over a link that is up or over one that maker makes.
func (d *Dialer) dialLink(ctx context.Context, n network, f fabric.Fabric, local, remote netip.AddrPort, maker linkMaker) (*Conn, error) {
	cfg, err := d.setup(n, f)
	if err != nil {
		return nil, err
	}
	request := n.request(f, local, remote)
	var made *link.Link // nil if the connection begins on a link that was there
	connect := func(ctx context.Context, another bool) (*link.Stream, error) {
		s, err := maker.Dial(ctx, request, cfg, another)
		if err == nil {
			made = s.Link()
		}
		return s, err
	}
	var s *link.Stream
	if cfg.Dedicated || local.Port() != 0 {
		cfg.Dedicated = true
		s, err = connect(ctx, false)
	} else {
		_, isUnproven := maker.(unproven)
		key := d.linkKey(f, local, remote, cfg, !isUnproven)
		s, err = links.Dial(ctx, key, connect, link.More{Links: d.Config.MostLinks(), Answer: maker.Answer()})
	}
	if err != nil {
		return nil, err
	}
	c := d.Trace.newConn(s, true)
	if made != nil {
		d.Trace.made(made) // if the user's function panics, the garbage collector closes c
	}
	return c, nil
}

// LinkInfo describes a link of this process at one moment: [Links], a [Trace] and
// [rconn.Conn.Link] return one.
type LinkInfo = rconn.LinkInfo

// Path has the addresses of the two cards that a queue pair connects.
type Path = rconn.Path

// Links returns the links of this process that are up or are looking for another queue pair,
// in no particular order. There may be several to one address (see [Config].Links). Links that
// have ended are not among them; the memory of their connections counts in [Memory] until
// these are closed.
func Links() (all []LinkInfo) {
	for _, i := range link.List() {
		all = append(all, rconn.LinkInfoOf(i))
	}
	return all
}

// MemoryInfo has the memory, in bytes, that the links of this process have registered, and what they may register. Registered memory is pinned for a device, with the
// device's queues as far as their size is known (see [Config.PinnedMemory]), or shared
// with another process.
type MemoryInfo struct {
	// Used is what is registered now. Limit is what SetMemoryLimit has set, or its default.
	Used  int `metric:"memory_used_bytes" help:"Memory that links have registered."`
	Limit int `metric:"memory_limit_bytes" help:"Memory that links may register."`

	// Locked is the part of Used that is pinned for devices. LockedLimit is its limit,
	// RLIMIT_MEMLOCK, or math.MaxInt for a process that has CAP_IPC_LOCK.
	Locked      int `metric:"locked_memory_used_bytes" help:"Memory that links have locked (pinned) for RDMA devices."`
	LockedLimit int `metric:"locked_memory_limit_bytes" help:"Memory that links may lock (pin) for RDMA devices; infinite without a limit."`
}

// Memory returns how much memory the links of this process use. Rings grow until seven eighths of a limit are in use; the
// rest is for new links and connections. When a limit is reached, idle links end and idle rings
// shrink. A Dial that still finds no memory fails, with an error that has the figures; on
// "auto" it takes TCP instead.
func Memory() MemoryInfo {
	used, limits := budget.Process.State()
	return MemoryInfo{used.Registered, limits.Registered, used.Locked, limits.Locked}
}

// SetMemoryLimit sets how many bytes the links of this process may register.
// 0 or less means the default: a quarter of the machine's memory, or of what the control group
// allows (memory.max, memory.high) if that is less. What is registered already stays. It may
// be called at any time, by several goroutines at once.
func SetMemoryLimit(bytes int) { budget.Process.SetLimit(max(bytes, 0)) }

// CloseIdleLinks ends the links of this process, dialed or accepted, that carry no connection
// and are only kept for the next one (see [Config].LinkIdle). A link carries a connection until
// its Close has returned; where the peer's end of it is still to come, the link ends with that, and
// one that is looking for another queue pair when it has found one or none.
func CloseIdleLinks() { link.CloseIdle() }
