// Package quicnet has the parts of package net's UDP sockets that quic-go's own tests use,
// over ringnet's sockets. TestQUIC makes those tests use it instead of package net.
package quicnet

import (
	"net"
	"net/netip"

	"github.com/ringnet/ringnet"
)

// Network is the network of all sockets.
const Network = "shm-udp"

// UDPConn is a PacketConn with addresses of type *net.UDPAddr, as quic-go's tests need them.
type UDPConn struct{ *ringnet.PacketConn }

// ListenUDP is net.ListenUDP over Network.
func ListenUDP(_ string, at *net.UDPAddr) (*UDPConn, error) {
	c, err := ringnet.ListenPacket(Network, at.String())
	if err != nil {
		return nil, err
	}
	return &UDPConn{c.(*ringnet.PacketConn)}, nil
}

// LocalAddr returns a *net.UDPAddr.
func (c *UDPConn) LocalAddr() net.Addr {
	return net.UDPAddrFromAddrPort(c.PacketConn.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort())
}

// ReadFrom returns a *net.UDPAddr.
func (c *UDPConn) ReadFrom(p []byte) (int, net.Addr, error) {
	n, from, err := c.ReadFromUDP(p)
	if err != nil {
		return 0, nil, err
	}
	return n, from, nil
}

// ReadFromUDP is as that of net.UDPConn.
func (c *UDPConn) ReadFromUDP(p []byte) (int, *net.UDPAddr, error) {
	n, from, err := c.ReadFromUDPAddrPort(p)
	if err != nil {
		return 0, nil, err
	}
	return n, net.UDPAddrFromAddrPort(from), nil
}

// WriteToUDP is as that of net.UDPConn.
func (c *UDPConn) WriteToUDP(p []byte, to *net.UDPAddr) (int, error) {
	return c.WriteToUDPAddrPort(p, to.AddrPort())
}
