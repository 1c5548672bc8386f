package ud

import (
	"errors"
	"net"
	"net/netip"
)

// SourceOf is the address of this host that IP sends to another from.
func SourceOf(remote netip.AddrPort) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(remote)) // which sends nothing
	if err != nil {
		return netip.Addr{}, errors.Unwrap(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
