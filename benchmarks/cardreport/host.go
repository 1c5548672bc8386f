package cardreport

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/ringnet/ringnet/internal/perf/report"
)

func (s *session) doctor(p *Part) {
	p.Note = "What `ringnet doctor` says."
	var err error
	if p.Details, err = s.ringnet(s.ctx, "doctor"); p.Details == "" && err != nil {
		p.problem("%v", err)
	}
}

func (s *session) host(p *Part) { s.describe(s.ctx, p) }

// describe tells of a host and its device. Each fact is a number or the name of a product: none says
// which host it is.
func (o *options) describe(ctx context.Context, p *Part) {
	device, err := o.choose(ctx)
	if err != nil {
		p.problem("%v", err)
	}
	m := report.ThisMachine()
	class := filepath.Join("/sys/class/infiniband", device.Name)
	pci := filepath.Join(class, "device")
	p.Note = "And what `ringnet info` says."
	p.table("what", "is")
	for _, fact := range [][2]string{
		{"ringnet", m.Ringnet},
		{"machine", m.String()},
		{"system", release()},
		{"rdma-core", rdmaCore()},
		{"frequency", text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")},
		{"device", device.Name},
		{"board", text(class, "board_id")},
		{"PCI", strings.TrimSpace(text(pci, "vendor") + " " + text(pci, "device"))},
		{"PCI width, of the most", of(text(pci, "current_link_width"), text(pci, "max_link_width"))},
		{"PCI speed, of the most", of(text(pci, "current_link_speed"), text(pci, "max_link_speed"))},
		{"NUMA node", text(pci, "numa_node")},
	} {
		if fact[1] != "" {
			p.row(fact[0], fact[1])
		}
	}
	if p.Details, err = o.ringnet(ctx, "info"); err != nil {
		p.problem("%v", err)
	}
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
