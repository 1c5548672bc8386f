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

// describe tells of a host and its device.
func (o *options) describe(ctx context.Context, p *Part) {
	device, err := o.choose(ctx)
	if err != nil {
		p.problem("%v", err)
	}
	info, _ := o.ask(ctx) // choose has told
	m := report.ThisMachine()
	p.Note = "And what `ringnet info` and others say."
	p.table("what", "is")
	for _, fact := range append([][2]string{{"ringnet", m.Ringnet}, {"machine", m.String()}, {"system", release()}}, kernelFiles("/").facts(info, device)...) {
		if fact[1] != "" {
			p.row(fact[0], fact[1])
		}
	}
	if p.Details, err = o.ringnet(ctx, "info"); err != nil {
		p.problem("%v", err)
	}
	if netdev, _ := device.network(); netdev != "" {
		p.Details += flowControl(ctx, netdev)
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
