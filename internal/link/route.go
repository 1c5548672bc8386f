package link

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
)

// route is a pair of cards by which the peer may be reached, by their addresses.
type route struct {
	local  netip.Addr
	remote netip.AddrPort // where the peer takes links up again
	known  bool           // the link has gone over it: the host that answers there is the peer's
}

// shares reports whether an address of either side is that of r.
func (r *route) shares(local, remote netip.Addr) bool {
	return r.local == local || r.remote.Addr() == remote
}

// cardPair is the addresses of the cards of a route, which the links of several processes may take.
type cardPair struct{ local, remote netip.Addr }

func (r route) cards() cardPair { return cardPair{r.local, r.remote.Addr()} }

// routes are all pairs of cards by which the peer may be reached. Those over which the
// link has gone come first, then those whose addresses are most alike.
func (l *Link) routes() []route {
	ep := l.endpoint()
	var all []route
	for _, local := range append([]netip.Addr{l.local.Addr()}, l.path.listener.others(l.path.ctx, l.local.Addr())...) {
		for _, remote := range l.path.peers {
			if local.Is4() != remote.Addr().Is4() {
				continue
			}
			first := local == l.local.Addr() && remote.Addr() == l.remote.Addr()
			last := local == ep.LocalAddr().Addr() && remote.Addr() == ep.RemoteAddr().Addr()
			all = append(all, route{local, remote, first || last})
		}
	}
	slices.SortStableFunc(all, func(a, b route) int {
		if a.known != b.known {
			if a.known {
				return -1
			}
			return 1
		}
		return cmp.Compare(alike(b.local, b.remote.Addr()), alike(a.local, a.remote.Addr()))
	})
	return all
}

// othersBetween is how many other routes are tried before the known ones are again.
const othersBetween = 3

// inOrder is the order in which to try routes when a queue pair over the lost path has failed.
// The first is one that shares no card with that path, if there is one. Then come the known
// ones, and again after each few of the others, which may be many: where a cable was out or a
// host was away, the known ones are as good as before.
func inOrder(all []route, lost Path) (order []route) {
	known := all
	if i := slices.IndexFunc(all, func(r route) bool { return !r.known }); i >= 0 {
		known = all[:i]
	}
	order = slices.Clone(known)
	for others := range slices.Chunk(all[len(known):], othersBetween) {
		if len(order) > len(known) {
			order = append(order, known...)
		}
		order = append(order, others...)
	}
	if i := slices.IndexFunc(order, func(r route) bool { return !r.shares(lost.Local.Addr(), lost.Remote.Addr()) }); i > 0 {
		first := order[i]
		copy(order[1:], order[:i])
		order[0] = first
	}
	return order
}

// lostPath is that of the queue pair that the link has lost: the zero Path if the peer has
// disconnected, for then the path is as good as before.
func (l *Link) lostPath() Path {
	l.lock()
	defer l.unlock()
	if l.m.PeerDisconnected() {
		return Path{}
	}
	return Path{l.ep.LocalAddr(), l.ep.RemoteAddr()}
}

// alike is the length, in bits, of the prefix that two addresses of one family share.
func alike(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range x {
		if d := x[i] ^ y[i]; d != 0 {
			return 8*i + bits.LeadingZeros8(d)
		}
	}
	return 8 * len(x)
}
