package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// counts is what the devices of this machine have counted, by DEVICE/PORT/COUNTER:
// the counters of rdma statistic.
type counts map[string]uint64

// readCounts reads the counters of all devices. Ports that do not count are left
// out.
func readCounts() (counts, error) {
	links, err := netlink.RdmaLinkList()
	if err != nil {
		return nil, fmt.Errorf("list RDMA devices: %w", err)
	}
	all := make(counts)
	for _, link := range links {
		for port := uint32(1); port <= link.Attrs.NumPorts; port++ {
			statistic, err := netlink.RdmaPortStatisticList(link, port)
			if err != nil {
				continue
			}
			for name, n := range statistic.Statistics {
				all[fmt.Sprintf("%s/%d/%s", link.Attrs.Name, port, name)] = n
			}
		}
	}
	return all, nil
}

// since returns by how much those counters rose that did, sorted by name.
func (c counts) since(before counts) []rise {
	var rises []rise
	for name, n := range c {
		if n > before[name] {
			rises = append(rises, rise{name, n - before[name]})
		}
	}
	slices.SortFunc(rises, func(a, b rise) int { return strings.Compare(a.counter, b.counter) })
	return rises
}

// rise is a counter, as counts names it, and by how much it rose.
type rise struct {
	counter string
	by      uint64
}

// noReceive reports whether the counter counts messages that found no receive
// posted: what ringnet promises never to send. Soft-RoCE has rcvd_rnr_err,
// send_rnr_err and retry_rnr_exceeded_err; mlx5 has rnr_nak_retry_err and
// out_of_buffer; others have rnr in the name too.
func (r rise) noReceive() bool {
	name := path.Base(r.counter)
	return strings.Contains(strings.ToLower(name), "rnr") || name == "out_of_buffer"
}
