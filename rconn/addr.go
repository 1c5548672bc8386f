package rconn

import (
	"net"
	"net/netip"
)

// Addr is the address of one end of a connection or of a listener. Its String
// is "host:port", as net.SplitHostPort wants it.
type Addr struct {
	network string
	ap      netip.AddrPort
}

var _ net.Addr = Addr{}

// NewAddr returns the address ap on the named network.
func NewAddr(network string, ap netip.AddrPort) Addr {
	return Addr{network, netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())}
}

// Network is the name of the network that carries the connection: "rdma" or "shm", or
// "auto" for a listener of that. It is never "tcp", for programs that see "tcp" expect a
// *net.TCPAddr.
func (a Addr) Network() string { return a.network }

// String is the address as "1.2.3.4:80" or "[fe80::1%eth0]:80".
func (a Addr) String() string { return a.ap.String() }

// AddrPort is the address as a netip.AddrPort, as package net's addresses
// offer it.
func (a Addr) AddrPort() netip.AddrPort { return a.ap }
