package link

import (
	"math/rand/v2"
	"net/netip"
	"sync"

	"github.com/ringnet/ringnet/internal/netns"
)

// Addresses are the pairs of addresses, local and remote, that the connections
// of a network in this process have: no two in one network namespace have the same.
// The zero Addresses is ready for use, and nil knows nothing and grants everything.
type Addresses struct {
	mu    sync.Mutex
	taken map[between]map[ports]bool
}

// between is where connections begin and end, in a network namespace, and ports are those of one of them: that is
// little, for there may be 100,000.
type (
	between struct {
		namespace     netns.Namespace
		local, remote netip.Addr
	}
	ports struct{ local, remote uint16 }
)

// take takes a pair, unless another connection has it.
func (a *Addresses) take(in netns.Namespace, local, remote netip.AddrPort) bool {
	if a == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.taken == nil {
		a.taken = make(map[between]map[ports]bool)
	}
	at, pair := between{in, local.Addr(), remote.Addr()}, ports{local.Port(), remote.Port()}
	switch {
	case a.taken[at][pair]:
		return false
	case a.taken[at] == nil:
		a.taken[at] = make(map[ports]bool)
	}
	a.taken[at][pair] = true
	return true
}

func (a *Addresses) release(in netns.Namespace, local, remote netip.AddrPort) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := between{in, local.Addr(), remote.Addr()}
	delete(a.taken[at], ports{local.Port(), remote.Port()})
	if len(a.taken[at]) == 0 {
		delete(a.taken, at)
	}
}

// firstEphemeral begins the ports that connections are dialed from: those of TCP on Linux
// (net.ipv4.ip_local_port_range), and all above.
const firstEphemeral = 32768

// choose claims a free port at an address for a connection to remote.
func (a *Addresses) choose(in netns.Namespace, local netip.Addr, remote netip.AddrPort) (netip.AddrPort, bool) {
	const ports = 1<<16 - firstEphemeral
	first := rand.IntN(ports)
	for i := range ports {
		p := netip.AddrPortFrom(local, uint16(firstEphemeral+(first+i)%ports))
		if a.take(in, p, remote) {
			return p, true
		}
	}
	return netip.AddrPort{}, false
}
