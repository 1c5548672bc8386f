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

// Addr is the address of a connection's end or of a listener. It offers
// Network, String and, as package net's addresses do, AddrPort.
type Addr = rconn.Addr

// network is a name that Dial and Listen know.
type network struct {
	name   string // as addresses give it: without the digit
	family string // as net.Resolver.LookupNetIP wants it: ip, ip4 or ip6
	open   func(trustUser, *Config) (fabric.Fabric, error)
}

var networks = map[string]network{
	"shm":   {"shm", "ip", openSHM},
	"rdma":  {"rdma", "ip", openRDMA},
	"rdma4": {"rdma", "ip4", openRDMA},
	"rdma6": {"rdma", "ip6", openRDMA},
}

// autoNetworks are the networks that stand for several, which resolve addresses
// for all of them.
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

// errPortOfTCP is why auto, which listens with TCP at the same port, leaves rdma out.
var errPortOfTCP = fmt.Errorf("auto over an iWARP device, whose ports are those of TCP: %w", errors.ErrUnsupported)

// besideTCP is the network as auto uses it. With iWARP the host's own TCP would get
// what rdma dials, and hand it to the program.
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

// isNetwork says whether a network is one of ringnet's.
func isNetwork(name string) bool {
	_, auto := autoNetworks[name]
	_, one := networks[name]
	_, packets := packetNetworks[name]
	return auto || one || packets
}

// unknownNetwork is a net.UnknownNetworkError that lists what is known, and where.
func unknownNetwork(name string) error {
	streams := slices.Concat(slices.Sorted(maps.Keys(autoNetworks)), slices.Sorted(maps.Keys(networks)))
	packets := slices.Sorted(maps.Keys(packetNetworks))
	return fmt.Errorf("%w: ringnet's are %s, and with ListenPacket in place of Listen %s",
		net.UnknownNetworkError(name), strings.Join(streams, ", "), strings.Join(packets, ", "))
}

// resolve returns the addresses that address stands for, in the order to try
// them; empty is what it means to name no host.
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
		ips[0] = ip // whose zone the resolver would drop
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

// ports is whose names of services the network's ports have.
func (n network) ports() string {
	if strings.HasSuffix(n.name, "-udp") {
		return "udp"
	}
	return "tcp"
}

// loopback is the host that Dial means when none is named.
func (n network) loopback() netip.Addr {
	if n.family == "ip6" {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// wildcard is the host that Listen means when none is named.
func (n network) wildcard() netip.Addr {
	if n.family == "ip4" {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// listenOn is addr as fabrics want it: on a network of both families the
// wildcard of either means both, as with net.Listen.
func (n network) listenOn(addr netip.AddrPort) netip.AddrPort {
	if n.family == "ip" && addr.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.Addr{}, addr.Port())
	}
	return addr
}

// addrPort converts an address of package net, or ours, to what a fabric wants.
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
