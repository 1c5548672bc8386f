package link

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Info is what a link is and carries at the moment.
type Info struct {
	Network       string
	Transport     string // fabric.Limits has it
	Local, Remote netip.AddrPort
	Dialed        bool // by this side
	Streams       int
	Memory        int // bytes registered at this end, without the device's queues

	Path    Path // that the link's queue pair takes
	Standby Path // that its standby takes; zero if it has none
	Seeking bool // it has lost its queue pair, and has no other yet
	Stats
}

// Path is by which addresses a queue pair is connected: the cards of both sides.
type Path struct{ Local, Remote netip.AddrPort }

func pathOf(ep fabric.Endpoint) Path { return Path{ep.LocalAddr(), ep.RemoteAddr()} }

// all is the links of this process that have registered memory, and what those have
// carried, by network, that have freed theirs.
var all = struct {
	sync.Mutex
	links map[*Link]struct{}
	past  map[string]Traffic
}{links: make(map[*Link]struct{}), past: make(map[string]Traffic)}

// allLinks returns all links of this process that have memory, in no order.
func allLinks() []*Link {
	all.Lock()
	defer all.Unlock()
	return slices.Collect(maps.Keys(all.links))
}

// CloseIdle has the links of this process leave that carry no stream.
func CloseIdle() {
	for _, l := range allLinks() {
		l.Leave()
	}
}

// Retire has the links of this process that have such an acceptor leave: at once, or with the
// last of their streams. No acceptor of theirs may take another stream.
func Retire(such func(Acceptor) bool) {
	for _, l := range allLinks() {
		if l.cfg.Acceptor != nil && such(l.cfg.Acceptor) {
			l.retire()
		}
	}
}

// List returns what links of this process there are, in no order, but for those that have
// ended, be there connections that their owners have not closed or not.
func List() []Info {
	var infos []Info
	for _, l := range allLinks() {
		l.mu.Lock()
		if l.stage < ended {
			infos = append(infos, l.info())
		}
		l.mu.Unlock()
	}
	return infos
}

// Totals returns what all links of this process have carried, those that have ended
// included, by network.
func Totals() map[string]Traffic {
	all.Lock()
	totals := maps.Clone(all.past)
	links := slices.Collect(maps.Keys(all.links))
	all.Unlock()
	for _, l := range links { // what they carry after they have ended is nothing
		t := totals[l.cfg.Network]
		t.add(l.Stats().Traffic)
		totals[l.cfg.Network] = t
	}
	return totals
}

// Info returns what the link is and carries. It works after the link has ended.
func (l *Link) Info() Info {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.info()
}

// info is Info. Called with mu held.
func (l *Link) info() Info {
	i := Info{
		Network:   l.cfg.Network,
		Transport: l.limits.Transport,
		Local:     l.local,
		Remote:    l.remote,
		Dialed:    l.active,
		Streams:   int(l.streams.live.Load()),
		Memory:    l.memory.account.Bytes() - l.memory.queues,
		Path:      pathOf(l.ep),
		Seeking:   l.stage.pathless(),
		Stats:     l.counted(),
	}
	if sb := l.path.standby; sb != nil {
		i.Standby = pathOf(sb.ep)
	}
	return i
}

func (l *Link) enlist() {
	all.Lock()
	defer all.Unlock()
	all.links[l] = struct{}{}
}

// delist takes the link out of the list. Called with mu held.
func (l *Link) delist() {
	all.Lock()
	defer all.Unlock()
	delete(all.links, l)
	past := all.past[l.cfg.Network]
	past.add(l.counted().Traffic)
	all.past[l.cfg.Network] = past
}
