package ud

import (
	"encoding/binary"
	"net/netip"
)

// grhSize is how many bytes a device places before each datagram: the global route
// header of InfiniBand, in whose place RoCE has a header of IPv6, or one of IPv4 in the
// last 20 bytes, the first 20 of which then mean nothing.
const grhSize = 40

const (
	ipv4HeaderSize = 20

	// firstOfIPv4 is the first byte of an IPv4 header without options.
	firstOfIPv4 = 0x45
)

// addressesOf returns the addresses that a datagram comes from and was sent to, by the
// header that the device has placed before it, or zero Addrs if that is no such header.
// The checksum tells an IPv4 header from the end of an IPv6 header; soft-RoCE leaves it
// out, but sets the bytes before the IPv4 header to 0. The header has no zone:
// link-local addresses get the given one.
func addressesOf(grh *[grhSize]byte, zone string) (from, to netip.Addr) {
	v4 := grh[grhSize-ipv4HeaderSize:]
	if v4[0] == firstOfIPv4 && (grh[0]>>4 != 6 || checksumFits(v4)) {
		return netip.AddrFrom4([4]byte(v4[12:16])), netip.AddrFrom4([4]byte(v4[16:20]))
	}
	if grh[0]>>4 != 6 {
		return netip.Addr{}, netip.Addr{}
	}
	address := func(b []byte) netip.Addr {
		a := netip.AddrFrom16([16]byte(b)).Unmap()
		if a.Is6() && a.IsLinkLocalUnicast() {
			a = a.WithZone(zone)
		}
		return a
	}
	return address(grh[8:24]), address(grh[24:40])
}

// checksumFits reports whether an IPv4 header has the right checksum.
func checksumFits(header []byte) bool {
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return sum>>16+sum&0xffff == 0xffff
}
