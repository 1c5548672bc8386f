package link

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/bubble"
	"github.com/ringnet/ringnet/internal/machine"
)

// Info describes a link of this process at one moment. Its counters are since the link was made. What
// `ringnet ss` tells of it has a name in JSON.
type Info struct {
	Network       string         `json:"network"`             // "rdma" or "shm"
	Transport     string         `json:"transport,omitempty"` // "InfiniBand" or "RoCE" on rdma, else ""
	Local, Remote netip.AddrPort `json:"-"`                   // of the link's first queue pair
	Dialed        bool           `json:"dialed"`              // whether this process dialed it
	Connections   int            `json:"connections"`         // that are open
	Memory        int            `json:"memory"`              // bytes at this end: what is registered, and the device's queues
	SendQueue     int            `json:"send_queue"`          // work requests that it has room for
	Outstanding   int            `json:"outstanding"`         // of those, how many have not completed

	Path         Path      `json:"-"`                      // that the link's queue pair takes, or took
	Seeking      bool      `json:"-"`                      // it has lost its queue pair, and has no other yet
	SeekingSince time.Time `json:"seeking_since,omitzero"` // when it has lost it; zero unless Seeking
	Stats
}

// Path has the addresses of the two cards that a queue pair connects: of this end, and of the
// peer.
type Path struct{ Local, Remote netip.AddrPort }

// all is the links of this process that have registered memory, and what those have done, by
// network, that have freed theirs.
var all = struct {
	sync.Mutex
	links map[*Link]struct{}
	past  map[string]Stats
}{links: make(map[*Link]struct{}), past: make(map[string]Stats)}

// allLinks returns all links of this process that have memory, in no order. The caller may use them: in a
// bubble of testing/synctest they are those of bubbles, and outside the others.
func allLinks() []*Link {
	all.Lock()
	defer all.Unlock()
	bubbles := bubble.In()
	return slices.DeleteFunc(slices.Collect(maps.Keys(all.links)), func(l *Link) bool { return l.bubble != bubbles })
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
// ended, be there connections that their owners have not closed or not. Of a link whose lock
// something holds it returns what was last known.
func List() []Info {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var infos []Info
	for _, l := range allLinks() {
		if t := l.tell(ctx.Done()); !t.over {
			infos = append(infos, t.Info)
		}
	}
	return infos
}

// patience is how long List and Totals wait for the locks of links, altogether.
const patience = 100 * time.Millisecond

// told is what a link tells of itself.
type told struct {
	Info
	over bool // it has ended
}

// tell returns what the link is and carries, or, if something holds its lock until enough is closed, what
// it has told before.
func (l *Link) tell(enough <-chan struct{}) *told {
	now, known := glance(l, enough, func() *told {
		t := &told{l.info(), l.m.Stage() >= machine.Ended}
		l.told.Store(t)
		return t
	})
	if known {
		return now
	}
	if before := l.told.Load(); before != nil {
		return before
	}
	return &told{Info: Info{Network: l.cfg.Network, Local: l.local, Remote: l.remote,
		Dialed: l.active, Connections: int(l.live.Load())}}
}

// maxAsked is how many goroutines of glance may wait for a link's lock.
const maxAsked = 64

// glance returns what f does, which is called with the link's lock held, unless something holds that until
// enough is closed. Then a goroutine is left to wait for it, which a Mutex cannot give up.
func glance[T any](l *Link, enough <-chan struct{}, f func() T) (seen T, known bool) {
	if l.mu.TryLock() {
		l.m.Begin()
		defer l.unlock()
		return f(), true
	}
	if l.asked.Add(1) > maxAsked {
		l.asked.Add(-1)
		return seen, false
	}
	locked := make(chan T, 1)
	go func() {
		defer l.asked.Add(-1)
		l.lock()
		defer l.unlock()
		locked <- f()
	}()
	select {
	case seen = <-locked:
		return seen, true
	case <-enough:
		return seen, false
	}
}

// Totals returns what all links of this process have done, those that have ended included, by
// network. Of a link whose lock something holds it counts what was last known.
func Totals() map[string]Stats {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all.Lock()
	totals := maps.Clone(all.past)
	links := slices.Collect(maps.Keys(all.links))
	all.Unlock()
	for _, l := range links { // what they carry after they have ended is nothing
		t := totals[l.cfg.Network]
		t.Add(l.tell(ctx.Done()).Stats)
		totals[l.cfg.Network] = t
	}
	return totals
}

// Info returns what the link is and carries. It works after the link has ended.
func (l *Link) Info() Info {
	l.lock()
	defer l.unlock()
	return l.info()
}

// info is Info.
func (l *Link) info() Info {
	depth, outstanding := l.m.Slots()
	return Info{
		Network:      l.cfg.Network,
		Transport:    l.limits.Transport,
		Local:        l.local,
		Remote:       l.remote,
		Dialed:       l.active,
		Connections:  l.m.Live(),
		Memory:       l.memory.account.Bytes(),
		SendQueue:    depth,
		Outstanding:  outstanding,
		Path:         Path{l.ep.LocalAddr(), l.ep.RemoteAddr()},
		Seeking:      l.m.Stage().Pathless(),
		SeekingSince: l.seekingSince(),
		Stats:        l.m.Stats(),
	}
}

// seekingSince is when the link has lost its queue pair, unless it has one.
func (l *Link) seekingSince() time.Time {
	if l.m.Stage().Pathless() {
		return l.m.LostAt()
	}
	return time.Time{}
}

func (l *Link) enlist() {
	all.Lock()
	defer all.Unlock()
	all.links[l] = struct{}{}
}

// delist takes the link out of the list.
func (l *Link) delist() {
	all.Lock()
	defer all.Unlock()
	delete(all.links, l)
	past := all.past[l.cfg.Network]
	past.Add(l.m.Stats())
	all.past[l.cfg.Network] = past
}
