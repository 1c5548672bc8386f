package cardreport

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// counts are what a device has counted, by the counter's name.
type counts map[string]uint64

// counters are those of the device's ports that rdma statistic shows, as files.
func (o *options) counters() counts {
	all := make(counts)
	files, _ := filepath.Glob(filepath.Join("/sys/class/infiniband", o.device, "ports/*/hw_counters/*"))
	for _, path := range files {
		if n, err := strconv.ParseUint(text(path), 10, 64); err == nil && filepath.Base(path) != "lifespan" {
			all[filepath.Base(path)] += n
		}
	}
	return all
}

// bothCounters are those of this host's device, and of the other host's if there is one.
func (s *session) bothCounters() (own, other counts) {
	if s.connect != "" {
		_ = s.server.Call("Host.Counters", struct{}{}, (*map[string]uint64)(&other)) // none are told of below
	}
	return s.counters(), other
}

// addBothRisen is addRisen for both hosts.
func (s *session) addBothRisen(p *Part, own, other counts, remark string) {
	ownAfter, otherAfter := s.bothCounters()
	p.addRisen("", own, ownAfter, remark)
	if s.connect != "" {
		p.addRisen("of the other host's device", other, otherAfter, remark)
	}
}

// addRisen adds a table of the counters that have risen, and of those about messages that find no
// receive, with a remark on these.
func (p *Part) addRisen(title string, before, after counts, remark string) {
	if len(after) == 0 {
		p.problem("hardware counters %s: there are none in /sys/class/infiniband", title)
		return
	}
	p.table("hardware counter", "rose by", "")
	p.Tables[len(p.Tables)-1].Title = title
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
