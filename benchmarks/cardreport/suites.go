package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ringnet/ringnet/benchmarks/process"
)

// suite is a package's tests that run over rdma where there is a device.
type suite struct {
	program, dir string
	quick        string // a few of them
}

var suites = []suite{
	{"rconn.test", "rconn", "^(TestNettest)$/^verbs$"},
	{"ringnet.test", ".", "^(TestTotalsCountWhatConnectionsHaveCarried|TestListenOnAPortInUse|TestDialWhereNobodyListensIsRefused)$/^(verbs|rdma)$"},
}

const (
	allOverRDMA = "/^(verbs|rdma6?)$"
	suiteTime   = 30 * time.Minute
	fewLines    = 12 // of a test's output
)

var (
	verdictLine = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+)`)
	overRDMA    = regexp.MustCompile(`^[^/]+/(verbs|rdma6?)$`)
)

// outcome is what a suite's output says.
type outcome struct {
	passed, failed, skipped int      // tests over rdma
	failures                []string // the names of all tests that have failed
	reasons                 []string // why tests were skipped, each once
	details                 []string // what was printed before failures
}

// read reads what a test program prints with -test.v.
func (o *outcome) read(output string) {
	var recent []string // since the last line about a test
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		verdict := verdictLine.FindStringSubmatch(line)
		switch {
		case verdict != nil:
			o.count(verdict[1], verdict[2], recent)
			recent = nil
		case strings.HasPrefix(line, "=== RUN"):
			recent = nil
		case !strings.HasPrefix(line, "==="):
			recent = append(recent, line)
			recent = recent[max(0, len(recent)-fewLines):]
		}
	}
	if _, after, panicked := strings.Cut(output, "\npanic: "); panicked {
		lines := strings.Split("panic: "+after, "\n")
		o.details = append(o.details, lines[:min(4*fewLines, len(lines))]...)
	}
}

func (o *outcome) count(verdict, name string, recent []string) {
	over := overRDMA.MatchString(name)
	switch {
	case verdict == "FAIL":
		o.failures = append(o.failures, name)
		o.details = append(o.details, append(slices.Clone(recent), "--- FAIL: "+name)...)
		if over {
			o.failed++
		}
	case over && verdict == "PASS":
		o.passed++
	case over:
		o.skipped++
		if len(recent) > 0 {
			_, reason, _ := strings.Cut(recent[len(recent)-1], ": ")
			if !slices.Contains(o.reasons, reason) {
				o.reasons = append(o.reasons, reason)
			}
		}
	}
}

// leaves are the failures that have no subtest that has failed.
func (o *outcome) leaves() (names []string) {
	for _, name := range o.failures {
		if !slices.ContainsFunc(o.failures, func(f string) bool { return strings.HasPrefix(f, name+"/") }) {
			names = append(names, name)
		}
	}
	return names
}

// datagrams are the tests of what only RoCE has.
const datagrams = "Packet|Datagram|Group"

func (s *session) runSuites(p *part) {
	p.Note = "Ringnet's own tests, on this host's device at both ends."
	if s.quick {
		p.Note += " A few of them: -quick."
	}
	var leftOut []string
	if ports := s.chosen.Ports; len(ports) > 0 && ports[0].LinkLayer == "InfiniBand" {
		leftOut = append(leftOut, datagrams)
		p.Note += " Datagrams are left out, which only RoCE has."
	}
	if s.skip != "" {
		leftOut = append(leftOut, s.skip)
		p.Note += " Some are left out: -skip."
	}
	before := s.counters()
	p.row("package", "passed", "failed", "skipped", "skipped because")
	for _, x := range suites {
		pattern := allOverRDMA
		if s.quick {
			pattern = x.quick
		}
		out, err := s.call(s.ctx, process.Call{
			Program: x.program, Dir: filepath.Join(s.repo, x.dir), Most: suiteTime + time.Minute,
			Args: []string{"-test.v", "-test.run", pattern, "-test.skip", strings.Join(leftOut, "|"), "-test.timeout", suiteTime.String()},
			Env:  []string{"SOFTROCE_ADDR=" + s.address, "SOFTROCE_DEVICE=" + s.device},
		})
		var o outcome
		o.read(out)
		if o.passed+o.failed+o.skipped > 0 {
			p.row(strings.TrimSuffix(x.program, ".test"), fmt.Sprint(o.passed), fmt.Sprint(o.failed), fmt.Sprint(o.skipped), strings.Join(o.reasons, "; "))
		}
		if failed := o.leaves(); len(failed) > 0 {
			p.problem("%s: failed: %s", x.program, strings.Join(failed, ", "))
		}
		if err != nil {
			p.problem("%v", err)
		}
		p.Details += strings.Join(o.details, "\n")
	}
	s.addRisen(p, before, "a message found no receive: ringnet promises 0")
}
