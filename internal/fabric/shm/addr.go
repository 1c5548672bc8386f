//go:build linux

package shm

// Addresses, and the abstract socket names that stand for them. Listeners and
// dialers have names of their own, so a dialer's port is never in a listener's
// way. The kernel forgets a name when its last socket is closed, however that
// comes about. Names belong to a network namespace, as ports do.

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	listenerName = "@ringnet-shm:l:"
	dialerName   = "@ringnet-shm:d:"

	// firstEphemeral begins the range for dynamic ports (RFC 6335, section 6).
	firstEphemeral = 49152
)

// both is how listeners at all addresses of both families call themselves.
const both = "*"

// nameOf is the name of an address, both for the zero Addr.
func nameOf(prefix string, a netip.AddrPort) string {
	if !a.Addr().IsValid() {
		return prefix + both + ":" + strconv.Itoa(int(a.Port()))
	}
	return prefix + a.String()
}

// dialerAddr is the address that a dialer's socket is named after.
func dialerAddr(sa unix.Sockaddr) (netip.AddrPort, error) {
	un, ok := sa.(*unix.SockaddrUnix)
	if !ok {
		return netip.AddrPort{}, errNotOurs
	}
	text, ok := strings.CutPrefix(un.Name, dialerName)
	if !ok {
		return netip.AddrPort{}, errNotOurs
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Port() == 0 {
		return netip.AddrPort{}, errNotOurs
	}
	return a, nil
}

// covering are the addresses whose listeners hear what is sent to a, a itself
// first.
func covering(a netip.AddrPort) []netip.AddrPort {
	family := netip.IPv6Unspecified()
	if a.Addr().Is4() {
		family = netip.IPv4Unspecified()
	}
	return []netip.AddrPort{a, netip.AddrPortFrom(family, a.Port()), netip.AddrPortFrom(netip.Addr{}, a.Port())}
}

// hears reports whether a listener at l hears what is sent to a.
func hears(l, a netip.AddrPort) bool {
	for _, c := range covering(a) {
		if c == l {
			return true
		}
	}
	return false
}

// plain gives every address one form: no IPv4 in IPv6, and interfaces by name.
func plain(a netip.AddrPort) netip.AddrPort {
	addr := a.Addr().Unmap()
	if i, err := strconv.Atoi(addr.Zone()); err == nil {
		if ifi, err := net.InterfaceByIndex(i); err == nil {
			addr = addr.WithZone(ifi.Name)
		}
	}
	return netip.AddrPortFrom(addr, a.Port())
}

// checkLocal says whether an address is one of this host's, by binding a socket
// to it as package net would. The unspecified addresses are.
func checkLocal(a netip.Addr) error {
	if a.IsMulticast() {
		return os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)
	}
	family := unix.AF_INET
	var sa unix.Sockaddr = &unix.SockaddrInet4{}
	if a.Is4() {
		sa = &unix.SockaddrInet4{Addr: a.As4()}
	} else {
		family = unix.AF_INET6
		sa6 := &unix.SockaddrInet6{Addr: a.As16()}
		if zone := a.Zone(); zone != "" {
			ifi, err := net.InterfaceByName(zone)
			if err != nil {
				return fmt.Errorf("%v: %w", err, syscall.EADDRNOTAVAIL)
			}
			sa6.ZoneId = uint32(ifi.Index)
		}
		sa = sa6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	return os.NewSyscallError("bind", unix.Bind(fd, sa))
}

// bind names a socket by an address whose port may be 0, and returns the
// address with the port. accept has the last word on it, or is nil.
func (s *socket) bind(prefix string, a netip.AddrPort, free func(netip.AddrPort) error) (netip.AddrPort, error) {
	if a.Port() != 0 {
		return a, s.bindExactly(prefix, a, free)
	}
	const ports = 1<<16 - firstEphemeral
	first := rand.IntN(ports)
	for i := range ports {
		a = netip.AddrPortFrom(a.Addr(), uint16(firstEphemeral+(first+i)%ports))
		err := s.bindExactly(prefix, a, free)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return a, err
		}
	}
	return a, fmt.Errorf("shm: no free port: %w", syscall.EADDRINUSE)
}

func (s *socket) bindExactly(prefix string, a netip.AddrPort, free func(netip.AddrPort) error) error {
	if free != nil {
		if err := free(a); err != nil {
			return err
		}
	}
	return os.NewSyscallError("bind", unix.Bind(s.fd, &unix.SockaddrUnix{Name: nameOf(prefix, a)}))
}

// overlap returns EADDRINUSE if a listener has an address that overlaps with l,
// l itself not among them. Addresses of an unspecified one are looked for among
// those of this host's interfaces.
func overlap(l netip.AddrPort) error {
	var others []netip.AddrPort
	at := func(a netip.Addr) { others = append(others, netip.AddrPortFrom(a, l.Port())) }
	if l.Addr().IsValid() && !l.Addr().IsUnspecified() {
		others = covering(l)[1:]
	} else {
		at(netip.Addr{})
		at(netip.IPv4Unspecified())
		at(netip.IPv6Unspecified())
		interfaces, err := net.InterfaceAddrs()
		if err != nil {
			return err
		}
		for _, i := range interfaces {
			if p, err := netip.ParsePrefix(i.String()); err == nil {
				at(p.Addr())
			}
		}
	}
	for _, o := range others {
		if o != l && (hears(l, o) || hears(o, l)) && named(nameOf(listenerName, o)) {
			return os.NewSyscallError("bind", syscall.EADDRINUSE)
		}
	}
	return nil
}

// named reports whether a socket has the name, without disturbing it: it is
// not of the type that asks.
func named(name string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: name}) != unix.ECONNREFUSED
}
