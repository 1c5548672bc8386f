package rdmaudp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
)

// JoinGroup makes c receive datagrams to a group, too: a multicast address, and a port, for
// which 0 stands for c's own. ifi is the interface at which to join: nil means the one that
// datagrams to the group are sent from. The arguments are those of JoinGroup of
// golang.org/x/net/ipv4. It may take five seconds. The membership ends when the device of
// the interface is removed.
//
// Any number of PacketConns of a host may join a group, at any port of their own. Each has a read
// buffer for each group. A PacketConn that sends to a group that it has joined receives that
// datagram, too, as do the other members on its host. With errors.Is: syscall.EADDRINUSE if
// c has joined the group at the interface before, syscall.EINVAL for an address that is not
// a group's.
func (c *PacketConn) JoinGroup(ifi *net.Interface, group net.Addr) error {
	ctx, cancel := context.WithTimeout(context.Background(), resolveWithin)
	defer cancel()
	return c.atGroup("join", ifi, group, func(at netip.AddrPort, card netip.Addr) error {
		return c.endpoint.Join(ctx, at, card)
	})
}

// LeaveGroup ends the membership that JoinGroup began with the same arguments. Datagrams to
// the group that have arrived unread may be lost. Close leaves all groups. The error is
// syscall.EADDRNOTAVAIL if c is not a member.
func (c *PacketConn) LeaveGroup(ifi *net.Interface, group net.Addr) error {
	return c.atGroup("leave", ifi, group, c.endpoint.Leave)
}

// atGroup calls do with a group, and an address of the card that an interface belongs to.
func (c *PacketConn) atGroup(op string, ifi *net.Interface, group net.Addr, do func(netip.AddrPort, netip.Addr) error) error {
	if c.isClosed() {
		return c.opErrorAt(op, group, net.ErrClosed)
	}
	at, err := c.groupOf(group)
	if err != nil {
		return c.opErrorAt(op, group, err)
	}
	card, err := cardOf(ifi, at.Addr())
	if err == nil {
		err = do(at, card)
	}
	return c.opErrorAt(op, addrOf(at), err)
}

// groupOf returns the group of an address, with c's port for port 0.
func (c *PacketConn) groupOf(a net.Addr) (netip.AddrPort, error) {
	if ip, ok := a.(*net.IPAddr); ok && ip != nil {
		a = &net.UDPAddr{IP: ip.IP, Zone: ip.Zone}
	}
	at, err := addrPortOf(a)
	at = fabric.Plain(at)
	if err != nil || !at.Addr().IsMulticast() {
		return netip.AddrPort{}, syscall.EINVAL
	}
	if at.Port() == 0 {
		return netip.AddrPortFrom(at.Addr(), c.port), nil
	}
	return at, nil
}

// cardOf returns an address of an interface, of the same family as that of a group, or the
// zero Addr if ifi is nil.
func cardOf(ifi *net.Interface, group netip.Addr) (netip.Addr, error) {
	if ifi == nil {
		return netip.Addr{}, nil
	}
	addrs, err := ifi.Addrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is4() == group.Is4() {
			if p.Addr().IsLinkLocalUnicast() && p.Addr().Is6() {
				return p.Addr().WithZone(ifi.Name), nil
			}
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("interface %s has no address of the group's family: %w", ifi.Name, syscall.EADDRNOTAVAIL)
}
