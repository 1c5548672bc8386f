//go:build linux && cgo

package rdmacore

// The ports of this host's devices.

// #include "shim.h"
import "C"

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// Cards returns the addresses of each card of this host, except for link-local ones. A card is a
// port of a device; the functions of one physical port, by which a device is divided into virtual
// ones, are one card: they share its cable.
func (m CM) Cards() [][]netip.Addr {
	return m.ports(func(device string) string { return functionOf(sysInfiniband, device) })
}

// Ports returns the same for each port of each device.
func (m CM) Ports() [][]netip.Addr { return m.ports(func(device string) string { return device }) }

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

// ports returns the addresses of each port of a device, as one for all devices that
// have the same name by nameOf. It asks the connection manager which port has an address,
// which works for any kind of network.
func (m CM) ports(nameOf func(device string) string) (all [][]netip.Addr) {
	numbers := make(map[port]int)
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || !prefix.Addr().IsGlobalUnicast() {
			continue
		}
		p, ok := m.portOf(prefix.Addr())
		if !ok {
			continue
		}
		p.device = nameOf(p.device)
		n, known := numbers[p]
		if !known {
			n = len(all)
			numbers[p] = n
			all = append(all, nil)
		}
		all[n] = append(all[n], prefix.Addr())
	}
	return all
}

// deviceName is the name of the device that an id is bound to.
func deviceName(cm cmID) string { return contextName(cm.verbs) }

func contextName(ctx deviceContext) string { return C.GoString(&ctx.device.name[0]) }

// port is a port of a device.
type port struct {
	device string
	number uint8
}

// portOf is the port that has an address of this host.
func (m CM) portOf(a netip.Addr) (p port, ok bool) {
	id, err := m.Bind(a)
	if err != nil {
		return port{}, false
	}
	defer id.Close()
	return port{deviceName(id.cm), uint8(id.cm.port_num)}, true
}

// Interface returns the network interface that has the ID's local address, among those of its port,
// or "": each VLAN is one, with GIDs of its own.
func (id *ID) Interface() string { return interfaceOf(id.portFolder(), id.local.Addr()) }

// interfaceOf is the network interface with an address, among those of a port, or "".
func interfaceOf(port string, a netip.Addr) string {
	if a.Zone() != "" {
		return a.Zone()
	}
	gids, _ := os.ReadDir(filepath.Join(port, "gids"))
	for _, gid := range gids {
		text, _ := os.ReadFile(filepath.Join(port, "gids", gid.Name()))
		if own, err := netip.ParseAddr(strings.TrimSpace(string(text))); err == nil && own.Unmap() == a {
			name, _ := os.ReadFile(filepath.Join(port, "gid_attrs/ndevs", gid.Name()))
			return strings.TrimSpace(string(name))
		}
	}
	return ""
}
