package main

// This file finds RDMA devices, on the host as well as in a guest, and makes software ones in a
// guest. It reads sysfs, because package netlink knows neither the states of ports nor
// their GIDs and interfaces.

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	sysInfiniband = "/sys/class/infiniband"

	// activeTimeout bounds the wait for a new device to become ready.
	activeTimeout = 30 * time.Second
	// mtu lets soft-RoCE use 4096 bytes, its largest, for a path.
	mtu = 4200
)

// device is an RDMA device and its addresses. An address that it does not have is zero.
type device struct {
	name   string
	netdev string
	addr   netip.Addr // IPv4
	addr6  netip.Addr // IPv6, but not link-local
	other  netip.Addr // IPv4 of an interface without RDMA
}

// The prefixes of the environment variables that describe a device to the command.
const (
	envPrefix       = "SOFTROCE_"
	envSecondPrefix = "SOFTROCE_SECOND_" // the device of the second cable
)

// env returns the environment variables that describe the device to the command.
func (d *device) env(prefix string) []string {
	env := []string{
		prefix + "DEVICE=" + d.name,
		prefix + "NETDEV=" + d.netdev,
		prefix + "ADDR=" + d.addr.String(),
	}
	if d.addr6.IsValid() {
		env = append(env, prefix+"ADDR6="+d.addr6.String())
	}
	if d.other.IsValid() {
		env = append(env, prefix+"OTHER_ADDR="+d.other.String())
	}
	return env
}

// findDevice returns the first device with an ACTIVE port whose network
// interface has an IPv4 address, or nil. Folder sys is laid out like
// /sys/class/infiniband; addrs returns the addresses of all interfaces that
// are up.
func findDevice(sys string, addrs func() map[string][]netip.Addr) *device {
	ports, _ := filepath.Glob(filepath.Join(sys, "*", "ports", "*"))
	var found *device
	hasRDMA := map[string]bool{}
	up := addrs()
	for _, port := range ports {
		dir := filepath.Dir(filepath.Dir(port))
		for _, netdev := range netdevs(dir, port) {
			hasRDMA[netdev] = true
			v4, v6 := pick(up[netdev])
			if found == nil && isActive(port) && v4.IsValid() {
				found = &device{name: filepath.Base(dir), netdev: netdev, addr: v4, addr6: v6}
			}
		}
	}
	if found == nil {
		return nil
	}
	for netdev, list := range up {
		if v4, _ := pick(list); !hasRDMA[netdev] && v4.IsValid() && !v4.IsLoopback() {
			if !found.other.IsValid() || v4.Less(found.other) {
				found.other = v4
			}
		}
	}
	return found
}

// isActive reports whether the port with the given folder can send and receive.
func isActive(port string) bool {
	state, err := os.ReadFile(filepath.Join(port, "state"))
	return err == nil && strings.Contains(string(state), "ACTIVE")
}

// netdevs returns the network interfaces of a port: those that its GIDs come from, and
// those of the same hardware, for IPoIB.
func netdevs(device, port string) []string {
	var names []string
	gids, _ := filepath.Glob(filepath.Join(port, "gid_attrs", "ndevs", "*"))
	for _, gid := range gids {
		// Unused entries of the table cannot be read.
		if name, err := os.ReadFile(gid); err == nil {
			names = append(names, strings.TrimSpace(string(name)))
		}
	}
	interfaces, _ := filepath.Glob(filepath.Join(device, "device", "net", "*"))
	for _, path := range interfaces {
		names = append(names, filepath.Base(path))
	}
	return names
}

// pick returns the first IPv4 address and the first IPv6 address of wider than
// link-local scope.
func pick(addrs []netip.Addr) (v4, v6 netip.Addr) {
	for _, a := range addrs {
		switch {
		case a.Is4() && !v4.IsValid():
			v4 = a
		case a.Is6() && !a.IsLinkLocalUnicast() && !v6.IsValid():
			v6 = a
		}
	}
	return v4, v6
}

// interfaceAddrs returns the addresses of all interfaces that are up.
func interfaceAddrs() map[string][]netip.Addr {
	up := map[string][]netip.Addr{}
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				up[i.Name] = append(up[i.Name], prefix.Addr())
			}
		}
	}
	return up
}

// Addresses of the devices made here: those of the benchmarking range that no
// network should route (RFC 2544), and unique local ones (RFC 4193). The node's
// number plus 1 is the last part, and each cable is a network of its own.
func nodeAddr(cable, node int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18, byte(2 * cable), byte(node + 1)})
}

func nodeAddr6(cable, node int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd50:f7a0:ce00:%d::%d", cable, node+1))
}

var otherAddr = netip.MustParseAddr("198.18.1.1")

// Interfaces made here. The first gets a soft-RoCE device where there is no
// cable to put it on, the second stays without.
const (
	rdmaInterface  = "softroce0"
	otherInterface = "softroce1"
)

// makeDevice makes a soft-RoCE device of the given name on netdev, the interface of a node for
// a cable. If netdev is rdmaInterface, makeDevice makes that, too.
func makeDevice(name, netdev string, cable, node int) (*device, error) {
	d := &device{name: name, netdev: netdev, addr: nodeAddr(cable, node), addr6: nodeAddr6(cable, node)}
	if netdev == rdmaInterface {
		// A fixed hardware address makes a fixed link-local address.
		if err := addDummy(netdev, net.HardwareAddr{0x02, 0x50, 0xf7, 0xa0, 0xce, 0x00}); err != nil {
			return nil, err
		}
	}
	// Without this, link-local addresses are of no use for the first second,
	// while the kernel looks for their duplicates. Kernels without IPv6 have
	// no such file and no such addresses.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+netdev+"/accept_dad", []byte("0"), 0)
	if err := setUpInterface(netdev, mtu, netip.PrefixFrom(d.addr, 24), netip.PrefixFrom(d.addr6, 64)); err != nil {
		return nil, err
	}
	if err := netlink.RdmaLinkAdd(name, "rxe", netdev); err != nil {
		return nil, fmt.Errorf("make rxe device %s on %s: %w", name, netdev, err)
	}
	return d, waitActive(d, d.addr, d.addr6)
}

// addOther makes an interface without a device, whose address the command gets beside
// those of d.
func addOther(d *device) error {
	if err := addDummy(otherInterface, nil); err != nil {
		return err
	}
	d.other = otherAddr
	return setUpInterface(otherInterface, 0, netip.PrefixFrom(d.other, 24))
}

// addDummy makes a dummy interface, which no packet leaves.
func addDummy(name string, address net.HardwareAddr) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = name, address
	if err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("make interface %s: %w", name, err)
	}
	return nil
}

// setUpInterface sets an interface up, with the given addresses and, unless mtu is
// 0, the given MTU.
func setUpInterface(name string, mtu int, addrs ...netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if mtu != 0 {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("set the MTU of %s to %d: %w", name, mtu, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	for _, a := range addrs {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}}
		if a.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add %s to %s: %w", a, name, err)
		}
	}
	return nil
}

// waitActive waits until the port of d is ACTIVE and has a GID for each of the
// addresses, which the kernel adds in the background.
func waitActive(d *device, addrs ...netip.Addr) error {
	port := filepath.Join(sysInfiniband, d.name, "ports", "1")
	for deadline := time.Now().Add(activeTimeout); ; time.Sleep(20 * time.Millisecond) {
		active := isActive(port)
		if active && hasGIDs(port, addrs...) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s on %s is not ready after %v (port active: %v)", d.name, d.netdev, activeTimeout, active)
		}
	}
}

// hasGIDs reports whether the port has a GID for each address. GIDs are IPv6
// addresses, and IPv4 addresses mapped to IPv6.
func hasGIDs(port string, addrs ...netip.Addr) bool {
	have := map[netip.Addr]bool{}
	gids, _ := filepath.Glob(filepath.Join(port, "gids", "*"))
	for _, path := range gids {
		if text, err := os.ReadFile(path); err == nil {
			if a, err := netip.ParseAddr(strings.TrimSpace(string(text))); err == nil {
				have[a.Unmap()] = true
			}
		}
	}
	for _, a := range addrs {
		if !have[a] {
			return false
		}
	}
	return true
}
