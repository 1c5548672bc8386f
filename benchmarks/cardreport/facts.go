package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/ringnet/ringnet/benchmarks/process"
	"github.com/ringnet/ringnet/internal/perf/report"
)

// facts are those of a host and its device that matter, as rows of a table. Each is a number or the
// name of a product: none says which host it is.
func (o *options) facts(ctx context.Context) (rows [][]string, err error) {
	device, err := o.choose(ctx)
	m := report.ThisMachine()
	for _, fact := range append([][]string{
		{"ringnet", revision()},
		{"Go", m.Go},
		{"kernel", m.Kernel},
		{"system", release()},
		{"rdma-core", rdmaCore()},
		{"processor", fmt.Sprintf("%s, %d CPUs", m.CPU, m.CPUs)},
		{"frequency", text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")},
		{"memory", report.Size(m.Memory)},
	}, device.facts()...) {
		if fact[1] != "" {
			rows = append(rows, fact)
		}
	}
	return rows, err
}

func (d *deviceInfo) facts() (rows [][]string) {
	if d.Name == "" {
		return nil
	}
	class := filepath.Join("/sys/class/infiniband", d.Name)
	pci := filepath.Join(class, "device")
	rows = [][]string{
		{"device", d.Name},
		{"driver", d.Driver},
		{"firmware", d.Firmware},
		{"board", text(class, "board_id")},
		{"PCI", strings.TrimSpace(text(pci, "vendor") + " " + text(pci, "device"))},
		{"PCI width, of the most", of(text(pci, "current_link_width"), text(pci, "max_link_width"))},
		{"PCI speed, of the most", of(text(pci, "current_link_speed"), text(pci, "max_link_speed"))},
		{"NUMA node", text(pci, "numa_node")},
	}
	for _, p := range d.Ports {
		rows = append(rows, []string{fmt.Sprintf("port %d", p.Number), strings.Join([]string{p.State, p.LinkLayer, p.Rate}, ", ")})
	}
	return rows
}

// text is that of a file, or "".
func text(path ...string) string {
	b, _ := os.ReadFile(filepath.Join(path...))
	return strings.TrimSpace(string(b))
}

func of(now, most string) string {
	if now == "" {
		return ""
	}
	return now + " of " + most
}

// revision is the commit that this program was built of.
func revision() (commit string) {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			commit += ", changed"
		}
	}
	return commit
}

// release is the name of the distribution.
func release() string {
	_, after, _ := strings.Cut(text("/etc/os-release"), "PRETTY_NAME=")
	name, _, _ := strings.Cut(after, "\n")
	return strings.Trim(name, `"`)
}

// rdmaCore is the version that the name of the system's libibverbs ends with: after the version of
// its interface, which is 1 and another number.
func rdmaCore() string {
	for _, place := range []string{"/usr/lib/*", "/usr/lib64", "/usr/lib", "/lib/*", "/usr/local/lib"} {
		found, _ := filepath.Glob(filepath.Join(place, "libibverbs.so.1.*.*"))
		for _, path := range found {
			_, version, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), "libibverbs.so.1."), ".")
			return version
		}
	}
	return ""
}

func (s *session) host(p *part) {
	rows, err := s.facts(s.ctx)
	if err != nil {
		p.problem("%v", err)
	}
	p.Rows = append([][]string{{"this host", ""}}, rows...)
	if p.Details, err = s.call(s.ctx, process.Call{Program: "ringnet", Args: []string{"info"}, Most: time.Minute}); err != nil {
		p.problem("%v", err)
	}
	if s.connect == "" {
		return
	}
	var there [][]string
	if err := s.server.Call("Server.Facts", struct{}{}, &there); err != nil {
		p.problem("the other host: %v", err)
		return
	}
	p.More = append([][]string{{"the other host", ""}}, there...)
}
