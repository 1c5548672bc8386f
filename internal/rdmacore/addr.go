//go:build linux && cgo

package rdmacore

// Socket addresses as C has them.

// #include "shim.h"
import "C"

import (
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/ringnet/ringnet/internal/fabric"
)

type sockaddr = C.struct_sockaddr_storage

func toSockaddr(ap netip.AddrPort) (sockaddr, error) {
	var s sockaddr
	addr := ap.Addr().Unmap()
	if addr.Is4() {
		sa := (*syscall.RawSockaddrInet4)(unsafe.Pointer(&s))
		sa.Family = syscall.AF_INET
		putPort(&sa.Port, ap.Port())
		sa.Addr = addr.As4()
		return s, nil
	}
	sa := (*syscall.RawSockaddrInet6)(unsafe.Pointer(&s))
	sa.Family = syscall.AF_INET6
	putPort(&sa.Port, ap.Port())
	sa.Addr = addr.As16()
	if zone := addr.Zone(); zone != "" {
		index, err := zoneIndex(zone)
		if err != nil {
			return s, err
		}
		sa.Scope_id = index
	}
	return s, nil
}

func fromSockaddr(s *sockaddr) netip.AddrPort {
	switch s.ss_family {
	case syscall.AF_INET:
		sa := (*syscall.RawSockaddrInet4)(unsafe.Pointer(s))
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), getPort(&sa.Port))
	case syscall.AF_INET6:
		sa := (*syscall.RawSockaddrInet6)(unsafe.Pointer(s))
		addr := netip.AddrFrom16(sa.Addr).Unmap()
		if sa.Scope_id != 0 && addr.Is6() {
			addr = addr.WithZone(fabric.ZoneName(sa.Scope_id))
		}
		return netip.AddrPortFrom(addr, getPort(&sa.Port))
	}
	return netip.AddrPort{}
}

// Ports are in network byte order in memory.
func putPort(p *uint16, port uint16) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(p))[:], port)
}

func getPort(p *uint16) uint16 {
	return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:])
}

func zoneIndex(zone string) (uint32, error) {
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	ifi, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, err
	}
	return uint32(ifi.Index), nil
}

// inZone adds the zone to link-local addresses of a connection request, which
// come without one: that of the interface with the local address.
func inZone(local, remote netip.AddrPort) (netip.AddrPort, netip.AddrPort) {
	if !local.Addr().Is6() || !local.Addr().IsLinkLocalUnicast() {
		return local, remote
	}
	// This reads one file, because any host on the link may send requests, and package
	// net would list all addresses for each interface.
	table, _ := os.ReadFile("/proc/net/if_inet6")
	zone := zoneOf(local.Addr(), string(table))
	local = netip.AddrPortFrom(local.Addr().WithZone(zone), local.Port())
	if remote.Addr().IsLinkLocalUnicast() {
		remote = netip.AddrPortFrom(remote.Addr().WithZone(zone), remote.Port())
	}
	return local, remote
}

// zoneOf is the interface that has an address by the table in /proc/net/if_inet6:
// lines that begin with an address and end with an interface. It is "" if there is
// none.
func zoneOf(a netip.Addr, table string) string {
	address := hex.EncodeToString(a.AsSlice())
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) == 6 && f[0] == address {
			return f[5]
		}
	}
	return ""
}
