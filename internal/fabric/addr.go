package fabric

import (
	"net"
	"net/netip"
	"strconv"
)

// Plain gives every address one form, in which two are equal if they mean the same: no IPv4
// in IPv6, interfaces by name, and a zone only where it says something, as package net
// reports addresses.
func Plain(a netip.AddrPort) netip.AddrPort {
	addr := a.Addr().Unmap()
	if !addr.IsLinkLocalUnicast() && !addr.IsLinkLocalMulticast() {
		addr = addr.WithZone("")
	} else if name := interfaceName(addr.Zone()); name != "" {
		addr = addr.WithZone(name)
	}
	return netip.AddrPortFrom(addr, a.Port())
}

// interfaceName is the name of the interface that a zone has by number, or "". Most zones are
// names already, and each datagram that is sent may have one: for those it allocates nothing.
func interfaceName(zone string) string {
	if zone == "" || zone[0] < '0' || zone[0] > '9' {
		return ""
	}
	i, err := strconv.Atoi(zone)
	if err != nil {
		return ""
	}
	ifi, err := net.InterfaceByIndex(i)
	if err != nil {
		return ""
	}
	return ifi.Name
}

// ZoneName is the zone of the interface with a number: its name, or the number if there is none.
func ZoneName(index uint32) string {
	if ifi, err := net.InterfaceByIndex(int(index)); err == nil {
		return ifi.Name
	}
	return strconv.FormatUint(uint64(index), 10)
}

// Loopback is this host's own address of the family of a.
func Loopback(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// Padded returns private data as long as the connection manager's messages carry it: n
// bytes, with zeros behind b.
func Padded(b []byte, n int) []byte {
	p := make([]byte, n)
	copy(p, b)
	return p
}
