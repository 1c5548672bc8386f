package ringnet

// The links of this process: which connections share one.

import (
	"context"
	"net/netip"
	"sync"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// linkKey is what dials that share a link have in common.
type linkKey struct {
	fabric        fabric.Fabric // nil with trust
	local, remote netip.AddrPort
	config        link.Config
	trust         *Dialer // whose TrustUser decides; nil without one
	proven        bool    // TCP leads where the link does
}

// links are those that this process has dialed and that more connections may
// begin on.
var links link.Pool[linkKey]

// addresses are those of the connections of each network.
var addresses = map[string]*link.Addresses{"shm": {}, "rdma": {}}

// returns are where peers come back to that have lost the queue pair of a link, of each
// fabric whose queue pairs may be lost while both processes live.
var returns sync.Map // of *link.Returns by fabric.Fabric

// completeLink sets in the configuration of links what is not in Config.
func completeLink(cfg *link.Config, n network, f fabric.Fabric) {
	cfg.Network, cfg.Addresses = n.name, addresses[n.name]
	if cfg.Resume > 0 && n.name != "shm" {
		r, _ := returns.LoadOrStore(f, &link.Returns{Fabric: f})
		cfg.Returns = r.(*link.Returns)
	}
}

// dialLink connects to an address: on a link to it that is up, or on a new one.
func (d *Dialer) dialLink(ctx context.Context, n network, f fabric.Fabric, local, remote netip.AddrPort, a *attempt) (*Conn, error) {
	cfg, err := d.Config.Link()
	if err != nil {
		return nil, err
	}
	completeLink(&cfg, n, f)
	var made *link.Link // nil if there was one
	connect := func(ctx context.Context) (*link.Stream, error) {
		a.ask(n.name, f)
		s, err := a.makeLink(ctx, func(ctx context.Context) (*link.Stream, error) {
			return request(ctx, f, local, remote, cfg, a.dialLink)
		})
		if err == nil {
			made = s.Link()
		}
		return s, err
	}
	var s *link.Stream
	if !cfg.Shared || local.Port() != 0 {
		cfg.Shared, cfg.Idle = false, 0
		s, err = connect(ctx)
	} else {
		key := linkKey{fabric: f, local: local, remote: remote, config: cfg, proven: a != nil}
		if d.TrustUser != nil {
			key.fabric, key.trust = nil, d // each dial opens a fabric that asks it
		}
		s, err = links.Dial(ctx, key, connect, d.more(f, local, remote, cfg, a))
	}
	if err != nil {
		return nil, err
	}
	c := d.Trace.newConn(n.name, s, d.Config, true)
	if made != nil {
		d.Trace.made(made) // if it panics, c is garbage
	}
	return c, nil
}

// more is how connections are spread over several links.
func (d *Dialer) more(f fabric.Fabric, local, remote netip.AddrPort, cfg link.Config, a *attempt) link.More {
	most := d.Config.MostLinks()
	if most == 1 {
		return link.More{}
	}
	return link.More{Links: most, Connect: func() (*link.Link, error) {
		ctx, cancel := context.WithTimeout(context.Background(), cfg.Handshake)
		defer cancel()
		l, err := request(ctx, f, local, remote, cfg, a.dialEmpty)
		if err == nil {
			d.Trace.made(l)
		}
		return l, err
	}}
}

// LinkInfo is what a link of this process is and carries at the moment: a queue
// pair to another process, which connections between them share.
type LinkInfo = rconn.LinkInfo

// Path is the addresses, of either side, between which a queue pair is connected.
type Path = rconn.Path

// Links returns the links of this process that are up, or seek another queue pair, in no
// order. There may be several to one address ([Config.Links]). One that has ended is not
// there; the memory of its connections is, until they are closed, in [Memory].
func Links() []LinkInfo {
	var infos []LinkInfo
	for _, i := range link.List() {
		infos = append(infos, rconn.NewLinkInfo(i))
	}
	return infos
}

// MemoryInfo is how many bytes the links and PacketConns of this process have registered
// and may register: pinned for a device, its queues included as far as they are known (see
// [Config.PinnedMemory]), or shared with another process.
type MemoryInfo struct {
	Used, Limit int

	// What is pinned is locked besides, and bounded by RLIMIT_MEMLOCK, unless the
	// process has CAP_IPC_LOCK: LockedLimit is then math.MaxInt.
	Locked, LockedLimit int
}

// Memory returns how much memory the links of this process use, and its PacketConns for
// what waits to be read. Rings grow up to seven eighths of the limits; the rest is for
// links and connections that begin. When there is no more, idle links end and idle rings
// shrink, and a Dial that still finds none fails with an error that has the figures; on
// "auto" it takes TCP.
func Memory() MemoryInfo {
	used, limits := budget.Process.State()
	return MemoryInfo{used.Registered, limits.Registered, used.Locked, limits.Locked}
}

// SetMemoryLimit sets how many bytes the links and PacketConns of this process may
// register. The default, which 0 stands for, is a quarter of the memory of the machine,
// or of what the control group allows (memory.max, memory.high) if that is less. What is
// registered already stays.
func SetMemoryLimit(bytes int) { budget.Process.SetLimit(max(bytes, 0)) }

// CloseIdleLinks ends the links of this process, dialed or accepted, that carry
// no connection at the moment and would else stay for a while ([Config.LinkIdle]).
func CloseIdleLinks() { link.CloseIdle() }
