package main

// This file finds RDMA devices, on the host as well as in a guest, and makes software ones in a
// guest. It reads sysfs, which knows the states of ports, their GIDs and interfaces.

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	sysInfiniband = "/sys/class/infiniband"

	// activeTimeout bounds the wait for new devices to become ready.
	activeTimeout = 30 * time.Second
	// mtu lets soft-RoCE use 4096 bytes, its largest, for a path.
	mtu = 4200
)

// device is an RDMA device and its addresses.
type device struct {
	name, port string // the port's folder
	netdev     string
	addr       netip.Addr // IPv4
	addr6      netip.Addr // IPv6, but not link-local, if it has any
}

// devices are those that a command is told of, and the IPv4 address of an interface without RDMA, if any.
type devices struct {
	all   []device
	other netip.Addr
}

// prefixes are those of the environment variables that describe a device to the command: that of the first
// cable, and of the second.
var prefixes = []string{"SOFTROCE_", "SOFTROCE_SECOND_"}

// env returns the environment variables that describe devices to the command.
func (d devices) env() (env []string) {
	for i, at := range d.all {
		env = append(env, prefixes[i]+"DEVICE="+at.name, prefixes[i]+"NETDEV="+at.netdev, prefixes[i]+"ADDR="+at.addr.String())
		if at.addr6.IsValid() {
			env = append(env, prefixes[i]+"ADDR6="+at.addr6.String())
		}
	}
	if d.other.IsValid() {
		env = append(env, "SOFTROCE_OTHER_ADDR="+d.other.String())
	}
	return env
}

// findDevices returns the first devices, n at most, with an ACTIVE port whose network interface has an IPv4
// address. Folder sys is laid out like /sys/class/infiniband; up has the addresses of all interfaces that
// are up.
func findDevices(n int, sys string, up map[string][]netip.Addr) (found devices) {
	ports, _ := filepath.Glob(filepath.Join(sys, "*", "ports", "*"))
	hasRDMA := map[string]bool{}
	for _, port := range ports {
		dir := filepath.Dir(filepath.Dir(port))
		names := netdevs(dir, port)
		for _, netdev := range names {
			hasRDMA[netdev] = true
		}
		i := slices.IndexFunc(names, func(netdev string) bool { v4, _ := pick(up[netdev]); return v4.IsValid() })
		if i >= 0 && len(found.all) < n && isActive(port) {
			v4, v6 := pick(up[names[i]])
			found.all = append(found.all, device{filepath.Base(dir), port, names[i], v4, v6})
		}
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

// nodeAddrs returns the addresses of a node at a cable: one of the benchmarking range that no network
// should route (RFC 2544), and a unique local one (RFC 4193). The node's number plus 1 is the last part, and each
// cable is a network of its own.
func nodeAddrs(cable, node int) (v4, v6 netip.Addr) {
	return netip.AddrFrom4([4]byte{198, 18, byte(2 * cable), byte(node + 1)}),
		netip.MustParseAddr(fmt.Sprintf("fd50:f7a0:ce00:%d::%d", cable, node+1))
}

// makeDevices makes a soft-RoCE device at each cable, or else at an interface which no packet leaves, and
// one more interface without a device. It returns the devices when they are ready.
func makeDevices(c *guestConfig) (found devices, err error) {
	commands := "link set lo up\nlink add softroce1 type dummy\nlink set softroce1 up\naddr add 198.18.1.1/24 dev softroce1\n"
	netdevs := []string{"eth0", "eth1"}[:c.Cables]
	if c.Cables == 0 {
		// A fixed hardware address makes a fixed link-local address.
		commands += "link add softroce0 address 02:50:f7:a0:ce:00 type dummy\n"
		netdevs = []string{"softroce0"}
	}
	for i, netdev := range netdevs {
		v4, v6 := nodeAddrs(i, c.Node)
		commands += fmt.Sprintf("link set %[1]s mtu %[2]d up\naddr add %[3]v/24 dev %[1]s\naddr add %[4]v/64 dev %[1]s nodad\n", netdev, mtu, v4, v6)
	}
	ip := exec.Command("ip", "-batch", "-")
	ip.Stdin = strings.NewReader(commands)
	if _, err := output(ip); err != nil {
		return found, err
	}
	for i, netdev := range netdevs {
		if _, err := output(exec.Command("rdma", "link", "add", fmt.Sprint("rxe", i), "type", "rxe", "netdev", netdev)); err != nil {
			return found, err
		}
	}
	for deadline := time.Now().Add(activeTimeout); ; time.Sleep(20 * time.Millisecond) {
		if found = findDevices(len(netdevs), sysInfiniband, interfaceAddrs()); len(found.all) == len(netdevs) && found.haveGIDs() {
			return found, nil
		}
		if time.Now().After(deadline) {
			return found, fmt.Errorf("after %v only these devices are ready: %v", activeTimeout, found)
		}
	}
}

// haveGIDs reports whether ports have GIDs of all addresses, which the kernel adds in the background. GIDs are
// IPv6 addresses, and IPv4 addresses mapped to IPv6.
func (d devices) haveGIDs() bool {
	have := map[netip.Addr]bool{}
	for _, at := range d.all {
		gids, _ := filepath.Glob(filepath.Join(at.port, "gids", "*"))
		for _, path := range gids {
			text, _ := os.ReadFile(path)
			a, _ := netip.ParseAddr(strings.TrimSpace(string(text)))
			have[a.Unmap()] = true
		}
		if !have[at.addr] || !have[at.addr6] {
			return false
		}
	}
	return true
}
