// Addresses, and who has which.

package sim

import (
	"net/netip"
	"slices"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
)

// firstEphemeral begins the range for dynamic ports (RFC 6335, section 6).
const firstEphemeral = 49152

// bind returns an address that is not taken. If the port of a is 0, it chooses one after
// last.
func bind(a netip.AddrPort, last *uint16, taken func(netip.AddrPort) bool) (netip.AddrPort, error) {
	if a.Port() != 0 {
		if taken(a) {
			return a, syscall.EADDRINUSE
		}
		return a, nil
	}
	for range 1<<16 - firstEphemeral {
		*last = max(*last+1, firstEphemeral)
		if free := netip.AddrPortFrom(a.Addr(), *last); !taken(free) {
			return free, nil
		}
	}
	return a, syscall.EADDRINUSE
}

// taken reports whether a dialer or a listener has the address. The caller holds
// n.mu.
func (n *Network) taken(a netip.AddrPort) bool {
	return n.ports[a] || slices.ContainsFunc(n.listeners, func(l *Listener) bool { return collide(l.addr, a) })
}

// collide reports whether there is an address that listeners at a and at b would both
// receive requests for.
func collide(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() && (covers(a.Addr(), b.Addr()) || covers(b.Addr(), a.Addr()))
}

// covers reports whether a listener at a receives requests for b.
func covers(a, b netip.Addr) bool {
	return a == b || a == netip.IPv6Unspecified() || a == netip.IPv4Unspecified() && b.Is4()
}

// wildcard is the address that a listener asks for. If it is not valid, that means all
// addresses of both families.
func wildcard(a netip.AddrPort) netip.AddrPort {
	if !a.Addr().IsValid() {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), a.Port())
	}
	return fabric.Plain(a)
}
