package cardreport

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ringnet/ringnet/benchmarks/process"
)

// What decides how a device behaves, besides itself. Each fact is a number or the name of a product: none says
// which host it is.

// kernelFiles is where the kernel tells what it knows.
type kernelFiles string

func (root kernelFiles) text(path ...string) string {
	return text(append([]string{string(root)}, path...)...)
}

func (root kernelFiles) glob(path ...string) []string {
	found, _ := filepath.Glob(filepath.Join(append([]string{string(root)}, path...)...))
	return found
}

// facts are what is found out of a device, each with its name.
func (root kernelFiles) facts(h hostInfo, d deviceInfo) [][2]string {
	class := filepath.Join("sys/class/infiniband", d.Name)
	pci := filepath.Join(class, "device")
	return [][2]string{
		{"rdma-core", h.Library.Version},
		{"packages", strings.Join(h.Library.Packages, ", ")},
		{"provider", h.Library.provider(d)},
		{"OFED", root.ofed()},
		{"kernel tainted", root.taint()},
		{"device", d.Name},
		{"driver, firmware", strings.Trim(d.Driver+", "+d.Firmware, ", ")},
		{"board", root.text(class, "board_id")},
		{"PCI", d.PCI},
		{"PCI width, of the most", of(root.text(pci, "current_link_width"), root.text(pci, "max_link_width"))},
		{"PCI speed, of the most", of(root.text(pci, "current_link_speed"), root.text(pci, "max_link_speed"))},
		{"PCI relaxed ordering, read request", root.deviceControl(pci)},
		{"node GUIDs of the devices", guids(h.Devices)},
		{"RoCE mode of rdma_cm, traffic class", root.roceMode(d.Name)},
		{"IOMMU", root.iommu(pci)},
		{"NUMA node, its processors", strings.Trim(root.text(pci, "numa_node")+", "+root.text(pci, "local_cpulist"), ", ")},
		{"interrupts", root.interrupts(pci)},
		{"frequency", root.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")},
	}
}

// provider is the file of a device's library, which may lie elsewhere than rdma-core's others. Its name is that of
// the driver, or of the device, up to a number.
func (l libraryInfo) provider(d deviceInfo) string {
	for name, path := range l.Providers {
		if strings.HasPrefix(d.Driver, name) || strings.HasPrefix(d.Name, name) || strings.TrimPrefix(d.Driver, "rdma_") == name {
			return path
		}
	}
	return ""
}

// ofed is the version of drivers that are not the kernel's own, which alone have one.
func (root kernelFiles) ofed() string {
	for _, module := range []string{"mlx_compat", "mlx5_core", "bnxt_re", "irdma", "ib_core"} {
		if version := root.text("sys/module", module, "version"); version != "" {
			return module + " " + version
		}
	}
	return "none: the drivers have no versions of their own"
}

// taint is why the kernel is tainted, by the letters of its documentation (admin-guide/tainted-kernels).
func (root kernelFiles) taint() string {
	n, err := strconv.ParseUint(root.text("proc/sys/kernel/tainted"), 10, 64)
	if err != nil || n == 0 {
		return "no"
	}
	const letters = "PFSRMBUDAWCIOELKXTN"
	all := ""
	for i, letter := range letters {
		if n>>i&1 != 0 {
			all += string(letter)
		}
	}
	return all + " (O: modules from elsewhere)"
}

// deviceControl is what the device's PCI Express is set to: capability 0x10, at whose offset 8 is Device Control,
// with relaxed ordering in bit 4 and the longest read request in bits 12 to 14. All but the first 64 bytes are for
// root to read.
func (root kernelFiles) deviceControl(pci string) string {
	config, _ := os.ReadFile(filepath.Join(string(root), pci, "config"))
	for at, hops := 0x34, 0; at < len(config) && hops < 48; hops++ {
		if at = int(config[at]); at < 0x40 || at+10 > len(config) {
			break
		}
		if config[at] == 0x10 {
			control := int(config[at+8]) | int(config[at+9])<<8
			return fmt.Sprintf("%t, %d bytes", control>>4&1 == 1, 128<<(control>>12&7))
		}
		at++ // where the next one's offset is
	}
	return ""
}

// guids says whether the devices can be told apart by their node GUIDs, and none of these.
func guids(devices []deviceInfo) string {
	count := make(map[string]int)
	for _, d := range devices {
		count[d.NodeGUID]++
	}
	zero := count["0000:0000:0000:0000"] + count[""]
	equal := 0
	for guid, n := range count {
		if n > 1 && guid != "" {
			equal += n
		}
	}
	return fmt.Sprintf("of %d devices %d have an equal one, and %d none", len(devices), equal, zero)
}

// roceMode is what the connection manager is configured to, as cma_roce_mode shows it. That program makes the
// folder in order to read it, which would be a change.
func (root kernelFiles) roceMode(device string) string {
	at := filepath.Join("sys/kernel/config/rdma_cm", device, "ports/1")
	mode := root.text(at, "default_roce_mode")
	if mode == "" {
		return "as the kernel has it: nothing is configured, or it is not visible"
	}
	return mode + ", " + root.text(at, "default_roce_tos")
}

func (root kernelFiles) iommu(pci string) string {
	kind := root.text(pci, "iommu_group/type")
	if kind == "" {
		kind = "none for the device"
	}
	for _, word := range strings.Fields(root.text("proc/cmdline")) {
		if strings.Contains(word, "iommu") {
			kind += ", " + word
		}
	}
	return kind
}

// interrupts says which processors the device's interrupts go to.
func (root kernelFiles) interrupts(pci string) string {
	var where []string
	n := 0
	for _, irq := range root.glob(pci, "msi_irqs/*") {
		to := filepath.Join("proc/irq", filepath.Base(irq))
		list := root.text(to, "effective_affinity_list")
		if list == "" {
			list = root.text(to, "smp_affinity_list")
		}
		if n++; list != "" && !slices.Contains(where, list) {
			where = append(where, list)
		}
	}
	if n == 0 {
		return ""
	}
	balanced := "no irqbalance"
	for _, comm := range root.glob("proc/[0-9]*/comm") {
		if text(comm) == "irqbalance" {
			balanced = "irqbalance"
		}
	}
	return fmt.Sprintf("%d, to processors %s; %s", n, strings.Join(where, " "), balanced)
}

// flowControl is what programs say of pauses at a network interface.
func flowControl(ctx context.Context, netdev string) string {
	var b strings.Builder
	for _, c := range [][]string{{"dcb", "pfc", "show", "dev", netdev}, {"ethtool", "-a", netdev}, {"mlnx_qos", "-i", netdev}, {"devlink", "dev", "info"}} {
		out, err := process.Call{Program: c[0], Args: c[1:], Most: 10 * time.Second}.Run(ctx)
		if c[0] == "devlink" {
			out = withoutSerialNumbers(out)
		}
		if err != nil && out == "" {
			out = err.Error() + "\n"
		}
		fmt.Fprintf(&b, "\n$ %s\n%s", strings.Join(c, " "), out)
	}
	return b.String()
}

// numbered are lines of devlink that name one card of all.
var numbered = regexp.MustCompile(`(?m)^.*serial_number.*\n?`)

func withoutSerialNumbers(text string) string { return numbered.ReplaceAllString(text, "") }
