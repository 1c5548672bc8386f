package main

// This file runs the command in a mount namespace of its own, in which /sys/class/infiniband and
// /dev/infiniband say that there is a device.

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside is the name under which this program starts itself in the namespace.
const inside = "idealcard-inside"

// What a card counts.
const noReceive = "rcvd_rnr_err"

var counters = []string{noReceive, "cq_overruns"}

// describe makes the files that say what the cards are, and their counters, in a folder that this
// process sees, too.
func describe(dir string, f *cardFabric, host int) error {
	files := map[string]string{}
	var errs []error
	for i, c := range f.Cards {
		if c.Host != host {
			continue
		}
		files[c.Name+"/node_type"] = "1: CA"
		if driver := driverOf(c.Manners); driver != "" {
			device := filepath.Join(dir, c.Name, "device")
			errs = append(errs, os.MkdirAll(device, 0o755), os.Symlink("../../../bus/pci/drivers/"+driver, filepath.Join(device, "driver")))
		}
		if slices.Contains(c.Manners, "iwarp") {
			files[c.Name+"/node_type"] = "4: RNIC"
		}
		guid := i
		if slices.Contains(c.Manners, "equal-guids") {
			guid = 0
		}
		files[c.Name+"/node_guid"] = fmt.Sprintf("0000:0000:0001:%04x", 0xdea1+guid*16)
		for j, p := range c.Ports {
			at := fmt.Sprintf("%s/ports/%d/", c.Name, j+1)
			guid := uint64(0x1dea1 + i*16 + 1 + j)
			p.describe(at, guid, f.interfaceOf(&p), files)
			if p.Link == infiniBand {
				a, _ := netip.ParseAddr(p.Addresses[0]) // none if it is "all"
				describeIPoIB(f.interfaceOf(&p)(a), p.gids(guid)[0], files)
			}
			files[at+"rate"] = "unlimited"
			if f.Gigabits > 0 {
				files[at+"rate"] = fmt.Sprintf("%g Gb/sec", f.Gigabits)
			}
			errs = append(errs, os.MkdirAll(filepath.Join(dir, at, "gid_attrs/ndevs"), 0o755))
		}
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o644))
	}
	return errors.Join(errs...)
}

// drivers are those whose providers have manners, by the beginning of the manners' names.
var drivers = map[string]string{"mlx5": "mlx5_core", "bnxt_re": "bnxt_en", "irdma": "ice", "qedr": "qede", "hns": "hns3"}

// driverOf is the driver of a card, or "".
func driverOf(manners []string) string {
	for begin, driver := range drivers {
		if slices.ContainsFunc(manners, func(m string) bool { return strings.HasPrefix(m, begin) }) {
			return driver
		}
	}
	return ""
}

// interfaceOf returns what finds the network interface of a port with an address, or "".
func (f *cardFabric) interfaceOf(p *port) func(netip.Addr) string {
	if f.hosts() > 1 {
		return func(netip.Addr) string { return netdev(p.Cable) } // which is made later
	}
	return interfaceWith
}

// ipoib is the folder in which describe leaves what interfaces are of IPoIB, as /sys/class/net tells it.
const ipoib = "net"

// describeIPoIB makes an interface one of IPoIB at the port with the GID, as far as files go: that GID is
// the end of its address (RFC 4391, 9.1.1). Of several ports with one interface the first has it.
func describeIPoIB(name string, gid netip.Addr, files map[string]string) {
	at := filepath.Join(ipoib, name) + "/"
	if _, taken := files[at+"type"]; name == "" || taken {
		return
	}
	address := "80:00:00:48"
	for _, b := range gid.AsSlice() {
		address += fmt.Sprintf(":%02x", b)
	}
	files[at+"type"], files[at+"mtu"], files[at+"address"] = "32", "2044", address
}

func (p *port) describe(at string, guid uint64, interfaceOf func(netip.Addr) string, files map[string]string) {
	files[at+"link_layer"] = p.Link
	files[at+"state"] = "4: ACTIVE"
	files[at+"lid"] = fmt.Sprintf("%#x", p.LID)
	for _, name := range counters {
		files[at+"hw_counters/"+name] = "0"
	}
	for i, key := range p.PKeys {
		files[fmt.Sprintf("%spkeys/%d", at, i)] = key
	}
	for i, gid := range p.gids(guid) {
		files[fmt.Sprintf("%sgids/%d", at, i)] = netip.AddrFrom16(gid.As16()).StringExpanded()
		if p.Link == infiniBand {
			files[fmt.Sprintf("%sgid_attrs/types/%d", at, i)] = "IB/RoCE v1"
			continue // to read ndevs is EINVAL: print_ndev, drivers/infiniband/core/sysfs.c
		}
		files[fmt.Sprintf("%sgid_attrs/types/%d", at, i)] = "RoCE v2"
		if name := interfaceOf(gid.Unmap()); name != "" {
			files[fmt.Sprintf("%sgid_attrs/ndevs/%d", at, i)] = name
		}
	}
}

// interfaceWith is the network interface of this host with an address, or "".
func interfaceWith(a netip.Addr) string {
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		addrs, _ := i.Addrs()
		for _, addr := range addrs {
			if of, err := netip.ParsePrefix(addr.String()); err == nil && (of.Addr() == a || a.IsLoopback() && of.Contains(a)) {
				return i.Name
			}
		}
	}
	return ""
}

// start starts this program in a new mount namespace, as the keeper of the command: as root, or in a
// user namespace in which the user stays who he is.
func start(dir string, command, env []string) (*keeper, error) {
	asRoot := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	asUser := &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWNS | unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
	}
	theirs, orders, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	var errs []error
	for _, attr := range []*syscall.SysProcAttr{asRoot, asUser} {
		cmd := &exec.Cmd{
			Path: "/proc/self/exe", Args: append([]string{inside, dir}, command...), Env: env,
			Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, ExtraFiles: []*os.File{theirs}, SysProcAttr: attr,
		}
		err := cmd.Start()
		if err == nil {
			return &keeper{cmd: cmd, orders: orders, ended: make(chan struct{})}, nil
		}
		errs = append(errs, err)
	}
	orders.Close()
	return nil, fmt.Errorf("no mount namespace can be made here, neither as root (%w) nor in a user namespace (%w): "+
		"run it as root with CAP_SYS_ADMIN, or where users may make namespaces", errs[0], errs[1])
}

// enter makes the mounts, keeps the command, and returns its exit status.
func enter(dir string, command []string) (int, error) {
	if err := mountDevice(dir); err != nil {
		return 0, fmt.Errorf("%w: this system lets neither root nor users mount here", err)
	}
	// The command has no more rights than it would have had.
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("prctl: %w", err)
	}
	path, err := exec.LookPath(command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return 0, err
	}
	return keep(path, command, filepath.Dir(dir))
}

// mountDevice mounts a /sys/class and a /dev that have all that was there, and the device.
func mountDevice(dir string) error {
	if err := mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE); err != nil {
		return err
	}
	parts, err := os.MkdirTemp(dir, "parts")
	if err != nil {
		return err
	}
	if err := os.Chmod(parts, 0o755); err != nil {
		return err
	}
	if err := mount("none", parts, "tmpfs", 0); err != nil {
		return err
	}
	class, dev := filepath.Join(parts, "class"), filepath.Join(parts, "dev")
	if err := errors.Join(mirror("/sys/class", class, "infiniband", "net"), mirror("/dev", dev, "infiniband")); err != nil {
		return err
	}
	if err := mountInterfaces(filepath.Join(dir, ipoib), filepath.Join(class, "net")); err != nil {
		return err
	}
	nodes := []string{"rdma_cm"}
	cards, _ := filepath.Glob(filepath.Join(dir, "*/node_type")) // a pattern that can be
	for i, card := range cards {
		card = filepath.Dir(card)
		if err := bind(card, filepath.Join(class, "infiniband", filepath.Base(card)), true); err != nil {
			return err
		}
		nodes = append(nodes, fmt.Sprintf("uverbs%d", i))
	}
	for _, name := range nodes {
		path := filepath.Join(dev, "infiniband", name)
		if err := errors.Join(os.WriteFile(path, nil, 0), os.Chmod(path, 0o666)); err != nil {
			return err
		}
	}
	if err := errors.Join(mount(class, "/sys/class", "", unix.MS_BIND|unix.MS_REC), mount(dev, "/dev", "", unix.MS_BIND|unix.MS_REC)); err != nil {
		return err
	}
	if err := unix.Unmount(parts, unix.MNT_DETACH); err != nil { // or the keeper could not remove the folder
		return fmt.Errorf("umount %s: %w", parts, err)
	}
	return nil
}

// mountInterfaces makes a /sys/class/net that has the interfaces of a folder, and all others that there are.
func mountInterfaces(dir, net string) error {
	entries, _ := os.ReadDir(dir) // none without InfiniBand
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if err := mirror("/sys/class/net", net, names...); err != nil {
		return err
	}
	for _, name := range names {
		if err := mount(filepath.Join(dir, name), filepath.Join(net, name), "", unix.MS_BIND); err != nil {
			return err
		}
	}
	return nil
}

// mirror makes a folder that has what another one has, but some empty folders.
func mirror(from, to string, empty ...string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, name := range empty {
		if err := os.MkdirAll(filepath.Join(to, name), 0o755); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if slices.Contains(empty, e.Name()) {
			continue
		}
		from, to := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.Type() != fs.ModeSymlink {
			err = bind(from, to, e.IsDir())
		} else if target, unread := os.Readlink(from); unread != nil {
			err = unread
		} else {
			err = os.Symlink(target, to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bind mounts a folder or a file at another place, which it makes.
func bind(from, to string, isDir bool) (err error) {
	if isDir {
		err = os.Mkdir(to, 0o755)
	} else {
		err = os.WriteFile(to, nil, 0o644)
	}
	if err != nil {
		return err
	}
	return mount(from, to, "", unix.MS_BIND|unix.MS_REC)
}

func mount(from, to, kind string, flags uintptr) error {
	if err := unix.Mount(from, to, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %s: %w", to, err)
	}
	return nil
}
