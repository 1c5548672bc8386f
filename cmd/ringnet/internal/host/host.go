// Package host finds out what a host has for ringnet: RDMA devices, and who may use
// them. It reads /sys, which needs neither libraries nor permissions. Package netlink
// knows neither drivers nor ports, and a question by it makes the kernel load ib_core.
package host

import (
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ringnet/ringnet/internal/numa"
)

// Device is an RDMA device.
type Device struct {
	Name     string `json:"name"`
	Driver   string `json:"driver,omitempty"`
	IWARP    bool   `json:"iwarp,omitempty"` // it speaks iWARP, which ringnet refuses
	NodeType string `json:"node_type"`       // CA of InfiniBand and RoCE
	NodeGUID string `json:"node_guid"`
	PCI      string `json:"pci,omitempty"` // 0x15b3:0x1017
	Firmware string `json:"firmware,omitempty"`
	Near     *Near  `json:"near,omitempty"` // on hosts with several NUMA nodes
	Ports    []Port `json:"ports"`
}

// Near is what is near a device. Lists are those of the kernel: 0-3,8.
type Near struct {
	Node       int    `json:"node"`
	Processors string `json:"processors"`
	Vectors    string `json:"vectors,omitempty"` // of completions; empty if it is not known
}

// Port is one of a device.
type Port struct {
	Number     int         `json:"number"`
	State      string      `json:"state"`      // ACTIVE, DOWN, INIT, …
	LinkLayer  string      `json:"link_layer"` // Ethernet or InfiniBand
	Rate       string      `json:"rate"`       // as the kernel says it: 100 Gb/sec (4X EDR)
	Interfaces []Interface `json:"interfaces"` // of RoCE, with VLANs and macvlans; or of IPoIB
	GIDs       []GID       `json:"gids"`
}

// Interface is a network interface of a port. Where devices are shared by network namespaces, it may be in
// another one.
type Interface struct {
	Name    string `json:"name"`
	MTU     int    `json:"mtu"`      // in bytes; 0 if it is not known here
	RoCEMTU int    `json:"roce_mtu"` // payload of a packet, in bytes; 0 on InfiniBand

	gids map[netip.Addr]bool // of RoCE: the addresses by which rdma_cm finds the port
}

// GID is an address of a port, as the device knows it.
type GID struct {
	Index int    `json:"index"`
	GID   string `json:"gid"`
	Type  string `json:"type"` // RoCE v2, IB/RoCE v1
}

// Usable reports whether connections can use the port.
func (p Port) Usable() bool { return p.State == "ACTIVE" && len(p.Addresses()) > 0 }

// Tree is the root of a file system with /sys.
type Tree string

// Root is that of this host. Tests have others.
var Root Tree = "/"

func (t Tree) text(path ...string) string {
	b, err := os.ReadFile(filepath.Join(append([]string{string(t)}, path...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// names are the names of a folder's entries, sorted, numbers by their value.
func (t Tree) names(path ...string) []string {
	entries, _ := os.ReadDir(filepath.Join(append([]string{string(t)}, path...)...))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.SortStableFunc(names, func(a, b string) int {
		m, _ := strconv.Atoi(a) // 0 for all that are no numbers, which ReadDir has sorted
		n, _ := strconv.Atoi(b)
		return m - n
	})
	return names
}

const class = "sys/class/infiniband"

// Devices are the RDMA devices, by name.
func (t Tree) Devices() []Device {
	devices := []Device{} // for JSON
	for _, name := range t.names(class) {
		d := Device{
			Name:     name,
			Driver:   t.driver(name),
			Firmware: t.text(class, name, "fw_ver"),
			IWARP:    strings.HasPrefix(t.text(class, name, "node_type"), "4:"), // RNIC
			NodeType: afterNumber(t.text(class, name, "node_type")),
			NodeGUID: t.text(class, name, "node_guid"),
			PCI:      strings.Trim(t.text(class, name, "device/vendor")+":"+t.text(class, name, "device/device"), ":"),
			Near:     near(numa.Tree(t), name),
		}
		for _, number := range t.names(class, name, "ports") {
			d.Ports = append(d.Ports, t.port(filepath.Join(class, name, "ports", number)))
		}
		devices = append(devices, d)
	}
	return devices
}

func near(t numa.Tree, device string) *Near {
	node := t.Node(device)
	if node == numa.Unknown {
		return nil
	}
	return &Near{node, numa.FormatList(t.Processors(device)), numa.FormatList(t.Vectors(device))}
}

// Cards are the names of the devices by the addresses of their interfaces.
func (t Tree) Cards() map[netip.Addr]string {
	all := make(map[netip.Addr]string)
	for _, d := range slices.Backward(t.Devices()) { // of several with an address, the first has it
		for _, p := range d.Ports {
			for _, a := range p.Addresses() {
				all[a.Addr()] = d.Name
			}
		}
	}
	return all
}

// Addresses are those of the port's interfaces, each with its subnet.
func (p Port) Addresses() (all []netip.Prefix) {
	for _, i := range p.Interfaces {
		all = append(all, i.Addresses()...)
	}
	return all
}

// Addresses are those of the interface by which rdma_cm finds the port: none if it is in another namespace.
func (i Interface) Addresses() (all []netip.Prefix) {
	for _, a := range addresses(i.Name) {
		if i.gids == nil || i.gids[a.Addr()] {
			all = append(all, a)
		}
	}
	return all
}

// IsHere reports whether the interface is in this network namespace. The kernel tells the names of others,
// too, and eth0 may be another one here.
func (i Interface) IsHere() bool {
	if _, err := net.InterfaceByName(i.Name); err != nil {
		return false
	}
	return len(i.Addresses()) > 0 || !slices.ContainsFunc(addresses(i.Name), func(a netip.Prefix) bool { return a.Addr().IsGlobalUnicast() })
}

func addresses(name string) (all []netip.Prefix) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	addrs, _ := i.Addrs()
	for _, a := range addrs {
		all = append(all, netip.MustParsePrefix(a.String()))
	}
	return all
}

// driver is that of a card, or rxe for a soft-RoCE device, which has none.
func (t Tree) driver(device string) string {
	if target, err := os.Readlink(filepath.Join(string(t), class, device, "device/driver")); err == nil {
		return filepath.Base(target)
	}
	if t.text(class, device, "parent") != "" {
		return "rdma_rxe"
	}
	return ""
}

func (t Tree) port(path string) Port {
	number, _ := strconv.Atoi(filepath.Base(path))
	p := Port{
		Number:    number,
		State:     afterNumber(t.text(path, "state")),
		LinkLayer: t.text(path, "link_layer"),
		Rate:      t.text(path, "rate"),
	}
	for _, index := range t.names(path, "gids") {
		gid := t.text(path, "gids", index)
		if gid == "" || strings.Trim(gid, "0:") == "" {
			continue // an empty entry of the table
		}
		n, _ := strconv.Atoi(index)
		p.GIDs = append(p.GIDs, GID{n, gid, t.text(path, "gid_attrs/types", index)})
	}
	if p.LinkLayer == "InfiniBand" {
		p.Interfaces = t.ipoib(p.GIDs)
	} else {
		p.Interfaces = t.ethernet(path, p.GIDs)
	}
	return p
}

// ethernet are the interfaces that GIDs of a port belong to, in the order of the GIDs: of its own interface,
// and of VLANs, macvlans and bonds on top of it.
func (t Tree) ethernet(port string, gids []GID) (all []Interface) {
	for _, g := range gids {
		name := t.text(port, "gid_attrs/ndevs", strconv.Itoa(g.Index))
		if name == "" {
			continue
		}
		at := slices.IndexFunc(all, func(i Interface) bool { return i.Name == name })
		if at < 0 {
			i := t.networkInterface(name)
			i.RoCEMTU, i.gids = roceMTU(i.MTU), make(map[netip.Addr]bool)
			at, all = len(all), append(all, i)
		}
		if a, err := netip.ParseAddr(g.GID); err == nil {
			all[at].gids[a.Unmap()] = true
		}
	}
	return all
}

// arphrdInfiniBand is the type of an interface of IPoIB (if_arp.h). The last 16 of the 20 bytes of its
// address are the GID of its port (RFC 4391, 9.1.1): the kernel tells no interface of a GID of InfiniBand, for
// print_ndev in drivers/infiniband/core/sysfs.c is EINVAL there.
const arphrdInfiniBand = "32"

// ipoib are the interfaces of IPoIB at a port with the GIDs, those of other P_Keys and a bond of them
// included.
func (t Tree) ipoib(gids []GID) (all []Interface) {
	for _, name := range t.names("sys/class/net") {
		if t.text("sys/class/net", name, "type") != arphrdInfiniBand {
			continue
		}
		address, err := hex.DecodeString(strings.ReplaceAll(t.text("sys/class/net", name, "address"), ":", ""))
		if err != nil || len(address) != 20 {
			continue
		}
		own, _ := netip.AddrFromSlice(address[4:])
		if slices.ContainsFunc(gids, func(g GID) bool { a, err := netip.ParseAddr(g.GID); return err == nil && a == own }) {
			all = append(all, t.networkInterface(name))
		}
	}
	return all
}

func (t Tree) networkInterface(name string) Interface {
	mtu, _ := strconv.Atoi(t.text("sys/class/net", name, "mtu"))
	return Interface{Name: name, MTU: mtu}
}

// afterNumber is "ACTIVE" of "4: ACTIVE".
func afterNumber(s string) string {
	if _, name, ok := strings.Cut(s, ": "); ok {
		return name
	}
	return s
}

// roceMTU is how many bytes of payload a packet carries at most on an interface:
// a power of two from 256 to 4096 that fits together with the headers of RoCE
// (InfiniBand specification, annex A17), which take 80 bytes at most beside those
// of Ethernet.
func roceMTU(mtu int) int {
	const headers = 80
	for size := 4096; size >= 256; size /= 2 {
		if size+headers <= mtu {
			return size
		}
	}
	return 0
}
