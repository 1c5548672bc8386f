package ringnet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/fabric/verbs"
	"github.com/ringnet/ringnet/pconn"
	"github.com/ringnet/ringnet/rconn"
)

// Addr is the address of one end of a connection, of a listener or of a [PacketConn]. It is
// a value, which == compares, and has these methods:
//
//   - [rconn.Addr.Network]: the name of the network that carries the connection, without a
//     digit: "rdma", "shm", "rdma-udp", "shm-udp", or "auto" for a listener of that.
//   - [rconn.Addr.String]: "1.2.3.4:80" or "[fe80::1%eth0]:80".
//   - [rconn.Addr.AddrPort]: the same as a netip.AddrPort, as addresses of package net
//     return it.
//
// An [AutoConn] and an [AutoListener] have addresses of type *net.TCPAddr, which has the same
// three methods.
type Addr = rconn.Addr

// network is a network that Dial and Listen know.
type network struct {
	name   string // as Addr.Network returns it: without the digit
	family string // as net.Resolver.LookupNetIP wants it: "ip", "ip4" or "ip6"
	open   func(trustUser, *Config) (fabric.Fabric, error)
}

var networks = map[string]network{
	"shm":   {"shm", "ip", openSHM},
	"rdma":  {"rdma", "ip", openRDMA},
	"rdma4": {"rdma", "ip4", openRDMA},
	"rdma6": {"rdma", "ip6", openRDMA},
}

// autoNetworks are the names of auto, which stands for several networks and resolves an
// address once for all of them.
var autoNetworks = map[string]network{
	"auto":  {name: "auto", family: "ip"},
	"auto4": {name: "auto", family: "ip4"},
	"auto6": {name: "auto", family: "ip6"},
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

func lookupNetwork(name string) (network, error) {
	n, ok := networks[name]
	if !ok {
		return network{}, unknownNetwork(name)
	}
	return n, nil
}

// errPortOfTCP is why auto does not use rdma on a host with an iWARP device.
var errPortOfTCP = fmt.Errorf("auto does not use iWARP devices, whose ports are those of TCP: %w", errors.ErrUnsupported)

// besideTCP returns the network as auto uses it, at the same port as TCP. An iWARP device
// shares its ports with the host's TCP: what rdma dials there would reach the TCP listener.
func (n network) besideTCP() network {
	open := n.open
	n.open = func(trust trustUser, c *Config) (fabric.Fabric, error) {
		if n.name == "rdma" && verbs.IWARP() {
			return nil, errPortOfTCP
		}
		return open(trust, c)
	}
	return n
}

// isNetwork reports whether this package implements the named network.
func isNetwork(name string) bool {
	_, auto := autoNetworks[name]
	_, one := networks[name]
	_, packets := packetNetworks[name]
	return auto || one || packets
}

// unknownNetwork returns a net.UnknownNetworkError that also lists the networks that there
// are.
func unknownNetwork(name string) error {
	streams := slices.Concat(slices.Sorted(maps.Keys(autoNetworks)), slices.Sorted(maps.Keys(networks)))
	packets := slices.Sorted(maps.Keys(packetNetworks))
	return fmt.Errorf("%w: Listen knows %s; ListenPacket knows %s; Dial knows all of these",
		net.UnknownNetworkError(name), strings.Join(streams, ", "), strings.Join(packets, ", "))
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
	if strings.HasSuffix(n.name, "-udp") {
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
