package metrics

import (
	"errors"
	"io/fs"
	"os"
	"strconv"

	"github.com/vishvananda/netlink"
)

// listPorts returns the ports of all RDMA devices in this network namespace. A port
// whose driver does not count, or that is being removed, has no counters.
func listPorts() ([]port, error) {
	// Where there is no device, asking by netlink would have the kernel load ib_core.
	if entries, err := os.ReadDir(sysfs); len(entries) == 0 {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	links, err := netlink.RdmaLinkList()
	if err != nil {
		return nil, err
	}
	var ports []port
	for _, link := range links {
		for number := uint32(1); number <= link.Attrs.NumPorts; number++ {
			p := port{device: link.Attrs.Name, number: strconv.FormatUint(uint64(number), 10)}
			if s, err := netlink.RdmaPortStatisticList(link, number); err == nil {
				p.counters = s.Statistics
			}
			ports = append(ports, p)
		}
	}
	return ports, nil
}
