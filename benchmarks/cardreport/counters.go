package cardreport

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// counters are what the device's ports have counted, by the counter's name: those of rdma statistic,
// as files.
func (s *session) counters() map[string]uint64 {
	all := make(map[string]uint64)
	files, _ := filepath.Glob(filepath.Join("/sys/class/infiniband", s.device, "ports/*/hw_counters/*"))
	for _, path := range files {
		if n, err := strconv.ParseUint(text(path), 10, 64); err == nil && filepath.Base(path) != "lifespan" {
			all[filepath.Base(path)] += n
		}
	}
	return all
}

// addRisen adds a table of the counters that have risen, and of those about messages that find no
// receive, with a remark on these.
func (s *session) addRisen(p *Part, before map[string]uint64, remark string) {
	after := s.counters()
	if len(after) == 0 {
		p.problem("hardware counters: the device has none in /sys/class/infiniband")
		return
	}
	p.table("hardware counter", "rose by", "")
	for _, name := range slices.Sorted(maps.Keys(after)) {
		n := after[name] - before[name]
		switch noReceive := strings.Contains(name, "rnr") || name == "out_of_buffer"; {
		case noReceive:
			p.row(name, fmt.Sprint(n), remark)
		case n > 0:
			p.row(name, fmt.Sprint(n), "")
		}
	}
}
