//go:build linux && cgo

package verbs

// The cards of this host.

// #include "shim.h"
import "C"

import (
	"net"
	"net/netip"

	"github.com/ringnet/ringnet/internal/fabric"
)

var _ fabric.Host = rdma{}

// Cards implements [fabric.Host]. It asks the connection manager which port has an
// address, which works for any kind of network.
func (f rdma) Cards() []fabric.Card {
	var cards []fabric.Card
	numbers := make(map[port]int)
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || !prefix.Addr().IsGlobalUnicast() {
			continue
		}
		p, ok := f.portOf(prefix.Addr())
		if !ok {
			continue
		}
		n, known := numbers[p]
		if !known {
			n = len(cards)
			numbers[p] = n
			cards = append(cards, nil)
		}
		cards[n] = append(cards[n], prefix.Addr())
	}
	return cards
}

// port is a port of a device.
type port struct {
	device string
	number uint8
}

// portOf is the port that has an address of this host.
func (f rdma) portOf(a netip.Addr) (p port, ok bool) {
	s, err := toSockaddr(netip.AddrPortFrom(a, 0))
	if err != nil {
		return port{}, false
	}
	id, err := f.createID()
	if err != nil {
		return port{}, false
	}
	defer f.destroyID(id)
	if C.rn_bind(id, &s, 0) != 0 || id.verbs == nil {
		return port{}, false
	}
	return port{C.GoString(&id.verbs.device.name[0]), uint8(id.port_num)}, true
}
