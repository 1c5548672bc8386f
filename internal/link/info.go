package link

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// Info is what a link is and carries at the moment.
type Info struct {
	Network       string
	Local, Remote netip.AddrPort
	Dialed        bool // by this side
	Streams       int
	Memory        int // bytes registered at this end, without the device's queues
	Stats
}

// all are the links of this process that have memory, until they have given it back.
var all = struct {
	sync.Mutex
	links map[*Link]struct{}
}{links: make(map[*Link]struct{})}

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

// List returns what links of this process are up, in no order.
func List() []Info {
	var infos []Info
	for _, l := range allLinks() {
		if i := l.info(); i != nil {
			infos = append(infos, *i)
		}
	}
	return infos
}

// info is nil for a link whose endpoint is closed, or about to be.
func (l *Link) info() *Info {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stage == closed {
		return nil
	}
	return &Info{
		Network: l.cfg.Network,
		Local:   l.ep.LocalAddr(),
		Remote:  l.ep.RemoteAddr(),
		Dialed:  l.active,
		Streams: int(l.live.Load()),
		Memory:  l.account.Bytes() - l.queues,
		Stats:   l.stats,
	}
}

func (l *Link) enlist() {
	all.Lock()
	defer all.Unlock()
	all.links[l] = struct{}{}
}

func (l *Link) delist() {
	all.Lock()
	defer all.Unlock()
	delete(all.links, l)
}
