package cardreport

import (
	"net/netip"
	"strings"
	"time"

	"github.com/ringnet/ringnet/benchmarks/process"
)

const mannersTime = 5 * time.Minute

// manners runs the program in C of that name.
func (s *session) manners(p *Part) {
	p.Note = "What providers do in different ways: a program in C tries it on queue pairs of this host's device alone."
	p.table("what", "seen")
	args := []string{s.device}
	if a, err := netip.ParseAddr(s.address); err == nil && a.Is4() {
		args = append(args, s.address)
	}
	before := s.counters()
	out, err := s.call(s.ctx, process.Call{Program: "manners", Args: args, Most: mannersTime})
	for line := range strings.Lines(out) {
		if name, seen, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			p.row(name, seen)
		}
	}
	if err != nil {
		p.problem("%v", err)
	}
	p.addRisen("", before, s.counters(), "tried on purpose")
}
