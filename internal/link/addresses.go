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
	taken map[claim]struct{}
}

// claim is the addresses of a connection, in a network namespace.
type claim struct {
	namespace netns.Namespace
	Path
}

// take takes a pair, unless another connection has it.
func (a *Addresses) take(in netns.Namespace, local, remote netip.AddrPort) bool {
	if a == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.taken == nil {
		a.taken = make(map[claim]struct{})
	}
	c := claim{in, Path{local, remote}}
	if _, taken := a.taken[c]; taken {
		return false
	}
	a.taken[c] = struct{}{}
	return true
}

func (a *Addresses) release(in netns.Namespace, local, remote netip.AddrPort) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.taken, claim{in, Path{local, remote}})
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
