package rconn

import (
	"net"
	"net/netip"
)

// Addr is the address of one end of a connection, or of a listener. It is a value, which ==
// compares.
type Addr struct {
	network string
	ap      netip.AddrPort
}

var _ net.Addr = Addr{}

// NewAddr returns the address ap on the named network. An IPv4 address that is mapped to IPv6
// becomes an IPv4 address.
func NewAddr(network string, ap netip.AddrPort) Addr {
	return Addr{network, netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())}
}

// Network returns the name of the network that carries the connection, without a digit: "rdma",
// "shm", or "auto" for a listener of that. It is never "tcp", because programs that see "tcp"
// expect a *net.TCPAddr.
func (a Addr) Network() string { return a.network }

// String returns the address as "1.2.3.4:80" or "[fe80::1%eth0]:80", which net.SplitHostPort
// takes apart.
func (a Addr) String() string { return a.ap.String() }

// AddrPort returns the address as a netip.AddrPort, as the methods of this name of
// *net.TCPAddr and *net.UDPAddr do.
func (a Addr) AddrPort() netip.AddrPort { return a.ap }
