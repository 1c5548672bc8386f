//go:build linux

package shm

// Addresses, and the abstract socket names that stand for them. Listeners and
// dialers have names of their own, so a dialer's port is never in a listener's
// way. The kernel forgets a name when its last socket is closed, however that
// comes about. Names belong to a network namespace, as ports do.

import (
	"errors"
	"io/fs"
	"math/rand/v2"
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

// bind names a socket by an address, and returns it with the port, which is
// chosen if it was 0. avoid says who else is in the way of an address; it may
// be nil.
func (s *socket) bind(prefix string, a netip.AddrPort, avoid func(netip.AddrPort) error) (netip.AddrPort, error) {
	if a.Port() != 0 {
		return a, s.bindExactly(prefix, a, avoid)
	}
	const ports = 1<<16 - firstEphemeral
	first := rand.IntN(ports)
	for i := range ports {
		a = netip.AddrPortFrom(a.Addr(), uint16(firstEphemeral+(first+i)%ports))
		err := s.bindExactly(prefix, a, avoid)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return a, err
		}
	}
	return a, os.NewSyscallError("bind", syscall.EADDRINUSE)
}

func (s *socket) bindExactly(prefix string, a netip.AddrPort, avoid func(netip.AddrPort) error) error {
	if avoid != nil {
		if err := avoid(a); err != nil {
			return err
		}
	}
	return os.NewSyscallError("bind", unix.Bind(s.fd, &unix.SockaddrUnix{Name: nameOf(prefix, a)}))
}

// overlaps returns EADDRINUSE if somebody listens at an address that overlaps
// with a and is not the same.
func overlaps(a netip.AddrPort) error {
	others, err := listeners(a.Port())
	if err != nil {
		return err
	}
	for _, o := range others {
		if o != a && (hears(o, a) || hears(a, o)) {
			return os.NewSyscallError("bind", syscall.EADDRINUSE)
		}
	}
	return nil
}

// listeners are the addresses of all listeners at a port. Where /proc does not
// tell, there are none.
func listeners(port uint16) ([]netip.AddrPort, error) {
	b, err := os.ReadFile("/proc/net/unix")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []netip.AddrPort
	for line := range strings.Lines(string(b)) {
		// Sockets that a listener has accepted have its name too, but not its
		// flag (__SO_ACCEPTCON, include/linux/net.h).
		const flags, name = 3, 7
		f := strings.Fields(line)
		if len(f) != name+1 || f[flags] != "00010000" {
			continue
		}
		text, ok := strings.CutPrefix(f[name], listenerName)
		if !ok {
			continue
		}
		if text == both+":"+strconv.Itoa(int(port)) {
			found = append(found, netip.AddrPortFrom(netip.Addr{}, port))
		} else if a, err := netip.ParseAddrPort(text); err == nil && a.Port() == port {
			found = append(found, a)
		}
	}
	return found, nil
}
