package cardreport

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ringnet/ringnet/benchmarks/process"
)

// counts are what a device has counted, by the counter's name.
type counts map[string]uint64

// counters are those of the device's ports that rdma statistic shows, as files; errors and discards of the ports;
// and what its network interface has dropped, or paused for.
func (o *options) counters() counts {
	all := make(counts)
	class := filepath.Join("/sys/class/infiniband", o.device, "ports/*")
	all.addFiles("", filepath.Join(class, "hw_counters/*"))
	all.addFiles("port ", filepath.Join(class, "counters/*"))
	if o.netdev == "" {
		return all
	}
	all.addFiles("net ", filepath.Join("/sys/class/net", o.netdev, "statistics/[rt]x_*"))
	out, _ := process.Call{Program: "ethtool", Args: []string{"-S", o.netdev}, Most: 10 * time.Second}.Run(context.Background())
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		all.add("ethtool ", name, value)
	}
	return all
}

// traffic is what counters count that say nothing of trouble.
var (
	traffic = regexp.MustCompile(`data|packets|bytes|lifespan|multicast|compressed`)
	trouble = regexp.MustCompile(`pause|pfc|discard|drop|out_of_buffer|ecn|cnp|err`)
)

func (c counts) addFiles(prefix, pattern string) {
	files, _ := filepath.Glob(pattern)
	for _, path := range files {
		c.add(prefix, filepath.Base(path), text(path))
	}
}

// add adds a counter of one port, unless it is of traffic. Those of hw_counters, which have no prefix, are all of
// interest; of ethtool's hundreds those of trouble are.
func (c counts) add(prefix, name, value string) {
	n, err := strconv.ParseUint(value, 10, 64)
	switch {
	case err != nil || name == "lifespan":
	case prefix != "" && traffic.MatchString(name):
	case prefix == "ethtool " && !trouble.MatchString(name):
	default:
		c[prefix+name] += n
	}
}

// hasHardware reports whether there are any of the device's own.
func (c counts) hasHardware() bool {
	for name := range c {
		if !strings.Contains(name, " ") {
			return true
		}
	}
	return false
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
	if !after.hasHardware() {
		p.problem("%s", strings.TrimSpace("hardware counters: there are none in /sys/class/infiniband "+title))
	}
	if len(after) == 0 {
		return
	}
	p.table("counter", "rose by", "")
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
