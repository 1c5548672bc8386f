// Package hwcounters reads what the RDMA devices of this machine have counted
// by themselves: the witness that ringnet's own counters cannot be. The
// counters are those of rdma statistic and of
// /sys/class/infiniband/DEVICE/ports/PORT/hw_counters.
package hwcounters

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const sysfs = "/sys/class/infiniband"

// Counts is what was counted, by DEVICE/PORT/COUNTER.
type Counts map[string]int64

// Read reads the counters of all devices. Those that cannot be read, as some
// of virtual devices, are left out.
func Read() Counts {
	counts := make(Counts)
	files, _ := filepath.Glob(filepath.Join(sysfs, "*/ports/*/hw_counters/*"))
	for _, file := range files {
		path := strings.Split(strings.TrimPrefix(file, sysfs+"/"), "/")
		device, port, name := path[0], path[2], path[4]
		if name == "lifespan" { // a setting: how old a count may be
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			counts[device+"/"+port+"/"+name] = n
		}
	}
	return counts
}

// Since returns by how much those counters rose that did, sorted by name.
func (c Counts) Since(before Counts) []Rise {
	var rises []Rise
	for name, n := range c {
		if by := n - before[name]; by > 0 {
			rises = append(rises, Rise{name, by})
		}
	}
	slices.SortFunc(rises, func(a, b Rise) int { return strings.Compare(a.Counter, b.Counter) })
	return rises
}

// Rise is a counter, as Counts names it, and by how much it rose.
type Rise struct {
	Counter string
	By      int64
}

// NoReceive says whether the counter counts messages that found no receive
// posted: what ringnet promises never to send. Soft-RoCE has rcvd_rnr_err,
// send_rnr_err and retry_rnr_exceeded_err; mlx5 has rnr_nak_retry_err and
// out_of_buffer; others have rnr in the name too.
func (r Rise) NoReceive() bool {
	name := filepath.Base(r.Counter)
	return strings.Contains(strings.ToLower(name), "rnr") || name == "out_of_buffer"
}
