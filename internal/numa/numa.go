// Package numa finds out which memory, processors and completion vectors are near an RDMA device, on hosts with several
// nodes.
package numa

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Unknown is the node of a device that is as near to all memory, or does not tell.
const Unknown = -1

// Tree is the root of a file system with /sys and /proc.
type Tree string

func (t Tree) path(elem ...string) string {
	return filepath.Join(append([]string{string(t)}, elem...)...)
}

func (t Tree) text(elem ...string) string {
	b, _ := os.ReadFile(t.path(elem...))
	return strings.TrimSpace(string(b))
}

func (t Tree) list(elem ...string) []int {
	all, _ := ParseList(t.text(elem...))
	return all
}

const class = "sys/class/infiniband"

// Node is the node of a device, by its name, or Unknown.
func (t Tree) Node(device string) int {
	n, err := strconv.Atoi(t.text(class, device, "device/numa_node"))
	if err != nil || n < 0 || len(t.list("sys/devices/system/node/online")) < 2 {
		return Unknown
	}
	return n
}

// Processors are those of a device's node.
func (t Tree) Processors(device string) []int { return t.list(class, device, "device/local_cpulist") }

// Vectors are the completion vectors whose interrupts go to processors of a device's node; none if that is not known.
// Which interrupt is that of a vector is told by its name, and that is known of mlx5 alone: mlx5_comp0@pci:0000:84:00.0.
func (t Tree) Vectors(device string) (near []int) {
	function, err := filepath.EvalSymlinks(t.path(class, device, "device"))
	if err != nil || t.Node(device) == Unknown {
		return nil
	}
	local := t.Processors(device)
	names, _ := filepath.Glob(t.path("proc/irq/*/mlx5_comp*@pci:" + filepath.Base(function)))
	for _, name := range names {
		number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(name), "mlx5_comp"), "@")
		vector, err := strconv.Atoi(number)
		if err == nil && isWithin(targets(filepath.Dir(name)), local) {
			near = append(near, vector)
		}
	}
	slices.Sort(near)
	return near
}

// targets are the processors to which an interrupt goes: where the kernel tells which of the permitted ones it has
// chosen, these.
func targets(irq string) []int {
	for _, name := range []string{"effective_affinity_list", "smp_affinity_list"} {
		b, _ := os.ReadFile(filepath.Join(irq, name))
		if all, err := ParseList(strings.TrimSpace(string(b))); err == nil && len(all) > 0 {
			return all
		}
	}
	return nil
}

// isWithin reports whether there are some, and all are among others.
func isWithin(some, others []int) bool {
	return len(some) > 0 && !slices.ContainsFunc(some, func(n int) bool { return !slices.Contains(others, n) })
}

const maxListed = 1 << 13 // NR_CPUS of Linux

// ParseList reads numbers and ranges, as the kernel lists processors: 0-3,8. They are in the order in which they are
// listed.
func ParseList(s string) (all []int, err error) {
	if s == "" {
		return nil, nil
	}
	for r := range strings.SplitSeq(s, ",") {
		first, last, isRange := strings.Cut(r, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is no number, nor a range", r)
		}
		to, err := strconv.ParseUint(last, 10, 32)
		if err != nil || to < from || to >= maxListed {
			return nil, fmt.Errorf("%q is no number below %d, nor a range", r, maxListed)
		}
		for n := from; n <= to; n++ {
			all = append(all, int(n))
		}
	}
	return all, nil
}

// FormatList is the reverse of ParseList, for numbers that are sorted.
func FormatList(all []int) string {
	var b strings.Builder
	for i := 0; i < len(all); {
		last := i
		for last+1 < len(all) && all[last+1] == all[last]+1 {
			last++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(all[i]))
		if last > i {
			fmt.Fprintf(&b, "-%d", all[last])
		}
		i = last + 1
	}
	return b.String()
}
