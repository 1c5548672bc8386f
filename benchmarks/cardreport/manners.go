package main

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/benchmarks/process"
	"github.com/ringnet/ringnet/internal/perf/report"
)

const mannersTime = 5 * time.Minute

// manners runs the program in C of that name, and makes and ends links of ringnet.
func (s *session) manners(p *part) {
	p.Note = "What providers do in different ways: a program in C tries it on queue pairs of this host's device alone, ringnet's links go to the other end."
	p.row("what", "seen")
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
	s.addRisen(p, before, "tried on purpose")
	s.timeLinks(p)
}

// timeLinks measures what a connection takes that has a link of its own, as the first one to a process has.
func (s *session) timeLinks(p *part) {
	var made, closed report.Sample
	var times, ends []time.Duration
	err := s.withPeer(func(ctx context.Context, address string) error {
		d := ringnet.Dialer{Config: &ringnet.Config{Dedicated: true}}
		for range 20 {
			began := time.Now()
			c, err := d.DialContext(ctx, "rdma", address)
			if err != nil {
				return err
			}
			times = append(times, time.Since(began))
			began = time.Now()
			if err := c.Close(); err != nil {
				return err
			}
			ends = append(ends, time.Since(began))
		}
		return nil
	})
	if err != nil {
		p.problem("ringnet's links: %v", err)
		return
	}
	made.SetLatencies(times, false)
	closed.SetLatencies(ends, false)
	p.row("a link of ringnet, made", report.Nanos(made.P50)+", the first time "+report.Nanos(float64(times[0])))
	p.row("a link of ringnet, closed", report.Nanos(closed.P50))
}
