//go:build linux && cgo

package verbs

// The cards of this host.

// #include "shim.h"
import "C"

import (
	"net"
	"net/netip"
	"path/filepath"

	"github.com/ringnet/ringnet/internal/fabric"
)

var _ fabric.Host = rdma{}

// Cards implements [fabric.Host]. The functions of one physical port, by which a device is
// divided into virtual ones, are one card: they share its cable.
func (f rdma) Cards() []fabric.Card {
	return f.cards(func(device string) string { return functionOf(sysInfiniband, device) })
}

// functionOf is the physical function that a device belongs to, or the device itself if it
// is none of PCI, or if its host does not see that function, as a virtual machine. (Their
// sys_image_guid does not tell: the two ports of a card, which have a cable each, have the same.)
func functionOf(sysfs, device string) string {
	own := filepath.Join(sysfs, device, "device")
	for _, path := range []string{filepath.Join(own, "physfn"), own} {
		if function, err := filepath.EvalSymlinks(path); err == nil {
			return function
		}
	}
	return device
}

// cards returns the addresses of each port of a device, with one card for all devices that
// have the same name by nameOf. It asks the connection manager which port has an address,
// which works for any kind of network.
func (f rdma) cards(nameOf func(device string) string) []fabric.Card {
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
		p.device = nameOf(p.device)
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

// deviceName is the name of the device that an id is bound to.
func deviceName(id cmID) string { return C.GoString(&id.verbs.device.name[0]) }

// port is a port of a device.
type port struct {
	device string
	number uint8
}

// portOf is the port that has an address of this host.
func (f rdma) portOf(a netip.Addr) (p port, ok bool) {
	id, err := f.bindToPort(a)
	if err != nil {
		return port{}, false
	}
	defer f.destroyID(id)
	return port{deviceName(id), uint8(id.port_num)}, true
}
