package main

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/perf/report"
)

const mannersTime = 5 * time.Minute

// manners runs the program in C of that name, and makes and ends links of ringnet.
func (s *session) manners(p *part) {
	if s.device == "" {
		p.problem("%s", s.lacking)
		return
	}
	p.Note = "What providers do in different ways: a program in C tries it on queue pairs of this host's device alone, ringnet's links go to the other end."
	p.row("what", "seen")
	args := []string{s.device}
	if a, err := netip.ParseAddr(s.address); err == nil && a.Is4() {
		args = append(args, s.address)
	}
	before := s.counters()
	out, err := call{program: s.program("manners"), args: args, most: mannersTime}.run(s.ctx)
	for line := range strings.Lines(out) {
		if name, seen, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			p.row(name, seen)
		}
	}
	if err != nil {
		p.problem("%v", err)
	}
	s.addRisen(p, before, "tried on purpose")
	s.timeLinks(p)
}

// timeLinks measures what a connection takes that has a link of its own, as the first one to a process has.
func (s *session) timeLinks(p *part) {
	peer, err := s.startPeer()
	if err != nil {
		p.problem("ringnet's links: %v", err)
		return
	}
	defer s.kill(peer)
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	d := ringnet.Dialer{Config: &ringnet.Config{Dedicated: true}}
	var made, ended []time.Duration
	for range 20 {
		began := time.Now()
		c, err := d.DialContext(ctx, "rdma", peer.Address)
		if err != nil {
			p.problem("ringnet's links: %v", err)
			return
		}
		made = append(made, time.Since(began))
		began = time.Now()
		if err := c.Close(); err != nil {
			p.problem("ringnet's links: %v", err)
			return
		}
		ended = append(ended, time.Since(began))
	}
	p.row("a link of ringnet, made", median(made)+", the first time "+report.Nanos(float64(made[0])))
	p.row("a link of ringnet, closed", median(ended))
}

func median(times []time.Duration) string {
	sorted := slices.Sorted(slices.Values(times))
	return report.Nanos(float64(sorted[len(sorted)/2]))
}
