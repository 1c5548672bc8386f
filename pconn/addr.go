package pconn

import (
	"net"
	"net/netip"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/rconn"
)

// addrPortOf is the address that a net.Addr stands for. One without an IP is that of all
// addresses of the host, as for package net.
func addrPortOf(a net.Addr) (netip.AddrPort, error) {
	if !PortFits(a) {
		return netip.AddrPort{}, syscall.EINVAL
	}
	switch a := a.(type) {
	case rconn.Addr:
		return a.AddrPort(), nil
	case *net.UDPAddr:
		if a != nil && len(a.IP) == 0 {
			return netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(a.Port)), nil
		}
		if a != nil {
			return a.AddrPort(), nil
		}
	case interface{ AddrPort() netip.AddrPort }:
		return a.AddrPort(), nil
	}
	return netip.AddrPort{}, syscall.EINVAL
}

// PortFits says whether the port of an address is one. Those of package net may have any
// number there, of which their method AddrPort keeps 16 bits.
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

// target is where a datagram to an address goes: with the unspecified one to this host, as
// UDP's do.
func (c *Conn) target(to netip.AddrPort) (netip.AddrPort, error) {
	to = fabric.Plain(to)
	if !to.Addr().IsValid() || to.Port() == 0 {
		return to, syscall.EINVAL
	}
	own := c.endpoint.LocalAddr().Addr()
	switch {
	case to.Addr().IsUnspecified() && !own.IsUnspecified():
		to = netip.AddrPortFrom(own, to.Port())
	case to.Addr().IsUnspecified() && (own.Is4() || to.Addr().Is4()):
		to = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.Port())
	case to.Addr().IsUnspecified():
		to = netip.AddrPortFrom(netip.IPv6Loopback(), to.Port())
	}
	switch {
	case own.Is4() && to.Addr().Is6():
		return to, &net.AddrError{Err: "non-IPv4 address", Addr: to.Addr().String()}
	case own.Is6() && !own.IsUnspecified() && to.Addr().Is4():
		return to, &net.AddrError{Err: "non-IPv6 address", Addr: to.Addr().String()}
	}
	return to, nil
}
