package cardreport

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
	mostLines   = 50 // of a test's output
)

var (
	verdicts = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+)`)
	overRDMA = regexp.MustCompile(`^[^/]+/(verbs|rdma6?)$`)
	reasons  = regexp.MustCompile(`(?m): (.*)\n\s*--- SKIP: [^/\s]+/(?:verbs|rdma6?) `)
)

// read adds what a test program of a package has printed with -test.v.
func (p *Part) read(name, output string) {
	tests := make(map[string]int) // over rdma, by their verdicts
	var failed []string
	for _, v := range verdicts.FindAllStringSubmatch(output, -1) {
		if overRDMA.MatchString(v[2]) {
			tests[v[1]]++
		}
		if v[1] == "FAIL" {
			failed = append(failed, v[2])
		}
	}
	var skipped []string
	for _, reason := range reasons.FindAllStringSubmatch(output, -1) {
		skipped = append(skipped, reason[1])
	}
	slices.Sort(skipped)
	if len(tests) > 0 {
		p.row(name, fmt.Sprint(tests["PASS"]), fmt.Sprint(tests["FAIL"]), fmt.Sprint(tests["SKIP"]), strings.Join(slices.Compact(skipped), "; "))
	}
	if len(failed) > 0 {
		p.problem("%s: failed: %s", name, strings.Join(failed, ", "))
	}
	for _, test := range strings.Split(output, "=== RUN")[1:] {
		if strings.Contains(test, "--- FAIL: ") || strings.Contains(test, "\npanic: ") {
			lines := strings.SplitAfter(test, "\n")
			p.Details += strings.Join(lines[:min(mostLines, len(lines))], "")
		}
	}
}

func (s *session) runSuites(p *Part) {
	p.Note = "Ringnet's own tests, on this host's device at both ends."
	if s.quick {
		p.Note += " A few of them: -quick."
	}
	before := s.counters()
	p.table("package", "passed", "failed", "skipped", "skipped because")
	for _, x := range suites {
		pattern := allOverRDMA
		if s.quick {
			pattern = x.quick
		}
		out, err := s.call(s.ctx, process.Call{
			Program: x.program, Dir: filepath.Join(s.repo, x.dir), Most: suiteTime + time.Minute,
			Args: []string{"-test.v", "-test.run", pattern, "-test.timeout", suiteTime.String()},
			Env:  []string{"SOFTROCE_ADDR=" + s.address, "SOFTROCE_DEVICE=" + s.device},
		})
		p.read(strings.TrimSuffix(x.program, ".test"), out)
		if err != nil {
			p.problem("%v", err)
		}
	}
	p.addRisen("", before, s.counters(), "a message found no receive: ringnet promises 0")
}
