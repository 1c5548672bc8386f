//go:build linux

package shm

// Which addresses are this host's. Listeners, dialers' destinations and the
// addresses that peers claim have to be among them.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
	"golang.org/x/sys/unix"
)

// checkClaim returns an error unless a, which a peer claims to be its own end of
// a connection or this one's, is an address that some socket of this host may
// have, in the form that plain gives it.
func checkClaim(a netip.AddrPort) error {
	switch {
	case !a.IsValid() || a.Port() == 0 || a.Addr().IsUnspecified() || a != fabric.Plain(a):
		return fmt.Errorf("the peer's address cannot be a connection's: %q", a)
	case !isName(a.Addr().Zone()):
		return fmt.Errorf("the peer's address names no interface: %q", a)
	}
	err := checkLocal(a.Addr())
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("the peer's address is not this host's: %w", err)
	}
	return err
}

// isName reports whether a zone is safe to print. The kernel allows more in an
// interface's name, such as terminals' escape sequences.
func isName(zone string) bool {
	for _, c := range []byte(zone) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// checkLocal returns an error, which wraps EADDRNOTAVAIL, unless an address is
// one at which TCP would reach this host from this host. The unspecified
// addresses are. After any other error it is not known now.
//
// Routing decides that. Whether a socket can be bound to an address says
// nothing where net.ipv4.ip_nonlocal_bind is 1, and interfaces do not have all
// the addresses that a route makes local.
func checkLocal(a netip.Addr) error {
	if a.IsUnspecified() {
		return nil
	}
	var ifi int
	if a.Is6() && a.IsLinkLocalUnicast() {
		i, err := net.InterfaceByName(a.Zone())
		if exhausted(err) {
			return err
		}
		if err != nil {
			return fmt.Errorf("link-local address %q without its interface: %v: %w", a, err, syscall.EADDRNOTAVAIL)
		}
		ifi = i.Index
	}
	kind, err := routeType(a, ifi)
	local := kind == unix.RTN_LOCAL
	if netlinkFailed(err) {
		local, err = isOwnSource(a)
	}
	switch {
	case exhausted(err):
		return err
	case err != nil:
		return fmt.Errorf("routing has no local address %v: %v: %w", a, err, syscall.EADDRNOTAVAIL)
	case !local:
		return fmt.Errorf("routing has no local address %v: %w", a, syscall.EADDRNOTAVAIL)
	}
	return nil
}

// exhausted reports whether an error is for want of descriptors or memory, which
// says nothing about what was asked.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}

// netlinkFailed reports whether an error of routeType is not routing's answer, but that of
// a sandbox, say, which allows no netlink: with whatever error it likes.
func netlinkFailed(err error) bool {
	_, answer := err.(syscall.Errno)
	return err != nil && !answer && !exhausted(err)
}

// isOwnSource asks routing without netlink, which a sandbox may refuse: a
// datagram socket that is connected to one of the host's own addresses gets the
// same one for itself, or one of the loopback's if it is of the loopback.
// Further addresses of an interface, which are sent to from its first one, are
// then not known to be the host's.
func isOwnSource(a netip.Addr) (bool, error) {
	const discard = 9 // nothing is sent
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, discard)))
	if err != nil {
		return false, err
	}
	defer c.Close()
	own := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	return own == a || own.IsLoopback() && a.IsLoopback(), nil
}

// routeType asks the kernel for the route to an address, over an interface
// unless ifi is 0, and returns its type (rtnetlink(7)). If routing's answer is an
// error, that is a bare syscall.Errno.
func routeType(a netip.Addr, ifi int) (kind uint8, err error) {
	family := uint8(unix.AF_INET)
	if a.Is6() {
		family = unix.AF_INET6
	}
	order := binary.NativeEndian
	b := []byte{family, uint8(a.BitLen()), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // struct rtmsg
	attribute := func(kind uint16, data []byte) {
		b = order.AppendUint16(b, uint16(unix.SizeofRtAttr+len(data)))
		b = append(order.AppendUint16(b, kind), data...)
	}
	attribute(unix.RTA_DST, a.AsSlice())
	if ifi != 0 {
		attribute(unix.RTA_OIF, order.AppendUint32(nil, uint32(ifi)))
	}
	err = askKernel(context.Background(), unix.NETLINK_ROUTE, unix.RTM_GETROUTE, 0, b, func(route []byte) error {
		if len(route) < unix.SizeofRtMsg {
			return errShortAnswer
		}
		kind = route[7] // rtm_type
		return nil
	})
	return kind, err
}
