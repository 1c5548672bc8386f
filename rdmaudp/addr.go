package rdmaudp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hostport"
)

// Addr is the address of a PacketConn. It is a value, which == compares.
type Addr struct{ ap netip.AddrPort }

var _ net.Addr = Addr{}

// addrOf is an address as PacketConns return it: not one of IPv4 that is mapped to IPv6.
func addrOf(a netip.AddrPort) Addr { return Addr{netip.AddrPortFrom(a.Addr().Unmap(), a.Port())} }

// Network returns "rdma-udp".
func (a Addr) Network() string { return networkName }

// String returns the address as "1.2.3.4:80" or "[fe80::1%eth0]:80", which net.SplitHostPort
// takes apart.
func (a Addr) String() string { return a.ap.String() }

// AddrPort returns the address as a netip.AddrPort, as a *net.UDPAddr does.
func (a Addr) AddrPort() netip.AddrPort { return a.ap }

// addrPortOf returns the address and port of a net.Addr. A *net.UDPAddr without an IP has
// the unspecified address, as for package net.
func addrPortOf(a net.Addr) (netip.AddrPort, error) {
	if !hostport.PortFits(a) {
		return netip.AddrPort{}, syscall.EINVAL
	}
	switch a := a.(type) {
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

// errBroadcast is for the address of all hosts: datagrams reach many only as a group.
var errBroadcast = fmt.Errorf("no broadcast: %w", errors.ErrUnsupported)

// target returns the address to send a datagram to, or an error if c cannot send there. The
// unspecified address stands for this host, as it does for UDP.
func (c *PacketConn) target(to netip.AddrPort) (netip.AddrPort, error) {
	to = fabric.Plain(to)
	if !to.Addr().IsValid() || to.Port() == 0 {
		return to, syscall.EINVAL
	}
	own := c.endpoint.LocalAddr().Addr()
	switch {
	case to.Addr().IsUnspecified() && !own.IsUnspecified():
		to = netip.AddrPortFrom(own, to.Port())
	case to.Addr().IsUnspecified() && own.Is4():
		to = netip.AddrPortFrom(fabric.Loopback(own), to.Port())
	case to.Addr().IsUnspecified():
		to = netip.AddrPortFrom(fabric.Loopback(to.Addr()), to.Port())
	}
	switch {
	case own.Is4() && to.Addr().Is6():
		return to, &net.AddrError{Err: "non-IPv4 address", Addr: to.Addr().String()}
	case own.Is6() && !own.IsUnspecified() && to.Addr().Is4():
		return to, &net.AddrError{Err: "non-IPv6 address", Addr: to.Addr().String()}
	case to.Addr() == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return to, errBroadcast
	}
	return to, nil
}
