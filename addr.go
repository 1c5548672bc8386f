package ringnet

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/fabric/verbs"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/netns"
	"github.com/ringnet/ringnet/internal/pconn"
)

// Addr is the address of one end of a connection, of a listener or of a [PacketConn]. It is
// a value, which == compares, and has these methods:
//
//   - [fabric.Addr.Network]: the name of the network that carries the connection, without a
//     digit: "rdma", "shm", "rdma-udp", "shm-udp", or "auto" for a listener of that.
//   - [fabric.Addr.String]: "1.2.3.4:80" or "[fe80::1%eth0]:80".
//   - [fabric.Addr.AddrPort]: the same as a netip.AddrPort, as addresses of package net
//     return it.
//
// An [AutoConn] and an [AutoListener] have addresses of type *net.TCPAddr, and a PacketConn of
// auto-udp those of type *net.UDPAddr, which have the same three methods.
type Addr = fabric.Addr

// carrier is what carries connections or datagrams, at addresses of any family.
type carrier struct {
	name string // as Addr.Network returns it
	open func(trustUser, *Config) (fabric.Fabric, error)

	// Of connections alone:
	addresses *link.Addresses // the pairs that connections of this process have; nil: whatever the fabric has
	requests  *requestLimiter // nil: as many as there are
	oneHost   bool            // a queue pair is lost only with a process
}

var (
	overSHM  = &carrier{name: "shm", open: openSHM, addresses: new(link.Addresses), oneHost: true}
	overRDMA = &carrier{name: "rdma", open: openRDMA, addresses: new(link.Addresses), requests: newRequestLimiter()}

	// overAuto stands for several, and resolves an address once for all of them.
	overAuto = &carrier{name: "auto"}

	datagramsOverSHM  = &carrier{name: "shm-udp", open: openSHM}
	datagramsOverRDMA = &carrier{name: "rdma-udp", open: openRDMA}
	datagramsOverAuto = &carrier{name: "auto-udp"} // both, and UDP
)

// network is what the first argument of Dial and Listen names.
type network struct {
	*carrier
	family    string          // as net.Resolver.LookupNetIP wants it: "ip", "ip4" or "ip6"
	namespace netns.Namespace // of the thread that dials or listens
}

// here returns the network in the namespace of the calling thread.
func (n network) here() network {
	n.namespace = netns.Current()
	return n
}

// networks are those that there are, by their names.
var networks = map[string]network{
	"auto":      {carrier: overAuto, family: "ip"},
	"auto4":     {carrier: overAuto, family: "ip4"},
	"auto6":     {carrier: overAuto, family: "ip6"},
	"shm":       {carrier: overSHM, family: "ip"},
	"rdma":      {carrier: overRDMA, family: "ip"},
	"rdma4":     {carrier: overRDMA, family: "ip4"},
	"rdma6":     {carrier: overRDMA, family: "ip6"},
	"shm-udp":   {carrier: datagramsOverSHM, family: "ip"},
	"rdma-udp":  {carrier: datagramsOverRDMA, family: "ip"},
	"rdma-udp4": {carrier: datagramsOverRDMA, family: "ip4"},
	"rdma-udp6": {carrier: datagramsOverRDMA, family: "ip6"},
	"auto-udp":  {carrier: datagramsOverAuto, family: "ip"},
	"auto-udp4": {carrier: datagramsOverAuto, family: "ip4"},
	"auto-udp6": {carrier: datagramsOverAuto, family: "ip6"},
}

// trustUser is Dialer.TrustUser or ListenConfig.TrustUser.
type trustUser func(uid uint32) bool

func openSHM(trust trustUser, _ *Config) (fabric.Fabric, error) {
	if trust == nil {
		return shm.Fabric()
	}
	return shm.New(shm.Config{Trust: trust})
}

func openRDMA(_ trustUser, c *Config) (fabric.Fabric, error) {
	if c == nil {
		return verbs.Fabric()
	}
	return verbs.New(verbs.Config{TrafficClass: c.TrafficClass})
}

// lookup returns a named network, which is one of datagrams or not.
func lookup(name string, datagrams bool) (network, error) {
	n, ok := networks[name]
	if !ok || n.ofDatagrams() != datagrams {
		return network{}, unknownNetwork(name)
	}
	return n, nil
}

// ofDatagrams reports whether the network carries datagrams, and not connections.
func (c *carrier) ofDatagrams() bool { return strings.HasSuffix(c.name, "-udp") }

// unknownNetwork returns a net.UnknownNetworkError that also lists the networks that there
// are.
func unknownNetwork(name string) error {
	var streams, packets []string
	for _, known := range slices.Sorted(maps.Keys(networks)) {
		if networks[known].ofDatagrams() {
			packets = append(packets, known)
		} else {
			streams = append(streams, known)
		}
	}
	hint := ""
	if strings.HasPrefix(name, "tcp") {
		hint = "; Dialer.ForTCP names the one to dial for tcp"
	}
	return fmt.Errorf("%w: Listen knows %s; ListenPacket knows %s; Dial knows all of these%s",
		net.UnknownNetworkError(name), strings.Join(streams, ", "), strings.Join(packets, ", "), hint)
}

// resolve returns the addresses that address stands for, in the order to try them. An
// address without a host stands for empty.
func (n network) resolve(ctx context.Context, r *net.Resolver, address string, empty netip.Addr) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := r.LookupPort(ctx, n.ports(), service)
	if err != nil {
		return nil, err
	}
	ips := []netip.Addr{empty}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Zone() != "" && n.family != "ip4" {
		ips[0] = ip // the resolver would drop the zone
	} else if host != "" {
		if ips, err = r.LookupNetIP(ctx, n.family, host); err != nil {
			return nil, err
		}
	}
	addrs := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		addrs[i] = netip.AddrPortFrom(ip.Unmap(), uint16(port))
	}
	return addrs, nil
}

// resolveLocal returns the address to listen at. Of several it prefers one of IPv4, as package
// net does.
func (n network) resolveLocal(ctx context.Context, address string) (netip.AddrPort, error) {
	addrs, err := n.resolve(ctx, net.DefaultResolver, address, n.wildcard())
	if err != nil {
		return netip.AddrPort{}, err
	}
	return preferIPv4(addrs), nil
}

func preferIPv4(addrs []netip.AddrPort) netip.AddrPort {
	for _, a := range addrs {
		if a.Addr().Is4() {
			return a
		}
	}
	return addrs[0]
}

// ports returns the protocol whose names of services the network uses for its ports.
func (n network) ports() string {
	if n.ofDatagrams() {
		return "udp"
	}
	return "tcp"
}

// loopback returns the address that Dial uses when the caller names no host.
func (n network) loopback() netip.Addr {
	if n.family == "ip6" {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// wildcard returns the address that Listen uses when the caller names no host.
func (n network) wildcard() netip.Addr {
	if n.family == "ip4" {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// listenOn returns addr as fabrics want it. On a network of both families the wildcard of
// either family means both, as with net.Listen.
func (n network) listenOn(addr netip.AddrPort) netip.AddrPort {
	if n.family == "ip" && addr.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.Addr{}, addr.Port())
	}
	return addr
}

// addrPort converts an address of this package or of package net to what a fabric wants.
func addrPort(a net.Addr) (netip.AddrPort, error) {
	if a == nil {
		return netip.AddrPort{}, nil
	}
	h, ok := a.(interface{ AddrPort() netip.AddrPort })
	if !ok {
		return netip.AddrPort{}, &net.AddrError{
			Err:  "local address is neither a ringnet.Addr nor a *net.TCPAddr",
			Addr: a.String(),
		}
	}
	if !pconn.PortFits(a) {
		return netip.AddrPort{}, &net.AddrError{Err: "invalid port", Addr: a.String()}
	}
	return netip.AddrPortFrom(h.AddrPort().Addr().Unmap(), h.AddrPort().Port()), nil
}
