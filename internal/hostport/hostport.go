// Package hostport resolves addresses of the form "host:port" as package net does, for networks
// that package net does not know.
package hostport

import (
	"context"
	"net"
	"net/netip"
)

// Family is that of a network's addresses, as net.Resolver.LookupNetIP names it: "ip" for both,
// "ip4" or "ip6".
type Family string

// Resolve returns the addresses that address stands for, in the order to try them. An address
// without a host stands for empty. protocol, "tcp" or "udp", is the one whose names of services
// stand for ports.
func (f Family) Resolve(ctx context.Context, r *net.Resolver, protocol, address string, empty netip.Addr) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := r.LookupPort(ctx, protocol, service)
	if err != nil {
		return nil, err
	}
	ips := []netip.Addr{empty}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Zone() != "" && f != "ip4" {
		ips[0] = ip // the resolver would drop the zone
	} else if host != "" {
		if ips, err = r.LookupNetIP(ctx, string(f), host); err != nil {
			return nil, err
		}
	}
	addrs := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		addrs[i] = netip.AddrPortFrom(ip.Unmap(), uint16(port))
	}
	return addrs, nil
}

// ResolveLocal returns the address to listen at. Of several it prefers one of IPv4, as package
// net does.
func (f Family) ResolveLocal(ctx context.Context, protocol, address string) (netip.AddrPort, error) {
	addrs, err := f.Resolve(ctx, net.DefaultResolver, protocol, address, f.wildcard())
	if err != nil {
		return netip.AddrPort{}, err
	}
	return PreferIPv4(addrs), nil
}

// PreferIPv4 returns the first address of IPv4, or else the first one.
func PreferIPv4(addrs []netip.AddrPort) netip.AddrPort {
	for _, a := range addrs {
		if a.Addr().Is4() {
			return a
		}
	}
	return addrs[0]
}

// Loopback is the address that Dial uses when the caller names no host.
func (f Family) Loopback() netip.Addr {
	if f == "ip6" {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// wildcard is the address that Listen uses when the caller names no host.
func (f Family) wildcard() netip.Addr {
	if f == "ip4" {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// ListenOn returns addr as fabrics want it. On a network of both families the wildcard of
// either family means both, as with net.Listen.
func (f Family) ListenOn(addr netip.AddrPort) netip.AddrPort {
	if f == "ip" && addr.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.Addr{}, addr.Port())
	}
	return addr
}

// LocalAddrPort converts the address to dial from, one of ringnet or of package net, to what a
// fabric wants.
func LocalAddrPort(a net.Addr) (netip.AddrPort, error) {
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
	if !PortFits(a) {
		return netip.AddrPort{}, &net.AddrError{Err: "invalid port", Addr: a.String()}
	}
	return netip.AddrPortFrom(h.AddrPort().Addr().Unmap(), h.AddrPort().Port()), nil
}

// PortFits reports whether the port of an address has 16 bits. The field Port of package
// net's addresses may have any number, which their method AddrPort truncates.
func PortFits(a net.Addr) bool {
	port := 0
	switch a := a.(type) {
	case *net.UDPAddr:
		if a != nil {
			port = a.Port
		}
	case *net.TCPAddr:
		if a != nil {
			port = a.Port
		}
	}
	return port == int(uint16(port))
}
