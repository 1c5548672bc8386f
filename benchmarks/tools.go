package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/perf/report"
)

// tool is a program that measures by itself, with a server and a client.
type tool struct {
	program string
	pkg     string // of Debian
	args    func(r ToolRun, server bool) []string
	parse   func(r ToolRun, output string) (report.Sample, error)
	many    bool // can do several connections
	alone   bool // is both ends, and measures for as long as it is told
}

// ToolRun is one run of a tool.
type ToolRun struct {
	Peer     string
	Workload string
	Address  string // of the server
	Device   string // this side's RDMA device; "" for the program's choice
	Port     int
	Size     int // bytes of a message
	Conns    int
	Count    int // messages of a connection
	Slice    time.Duration
}

// toolTimeout ends a program that has lost its other side.
const toolTimeout = time.Minute

// key is the run's, by which its server ends it.
func (r ToolRun) key() string { return strconv.Itoa(r.Port) }

// tool is the program.
func (r ToolRun) tool() (tool, error) {
	p, err := findPeer(r.Peer)
	if err != nil {
		return tool{}, err
	}
	t, ok := p.tools[r.Workload]
	if !ok {
		return tool{}, fmt.Errorf("%s has no program for %s", p.name, r.Workload)
	}
	return t, t.there()
}

// ToolResult is how a program ended.
type ToolResult struct {
	Output string
	Error  string
	CPU    float64 // seconds
}

type runningTool struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	output strings.Builder
}

// start starts a side of the program.
func (r ToolRun) start(server bool) (*runningTool, error) {
	program, err := r.tool()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), toolTimeout)
	t := &runningTool{cmd: exec.CommandContext(ctx, program.program, program.args(r, server)...), cancel: cancel}
	t.cmd.Stdout, t.cmd.Stderr = &t.output, &t.output
	if err := t.cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	return t, nil
}

// there is an error that says what to do if the program is not there.
func (t tool) there() error {
	switch _, err := exec.LookPath(t.program); {
	case err == nil:
		return nil
	case t.alone:
		return fmt.Errorf("%s is not there: make card-report builds it, with a compiler and libibverbs-dev", filepath.Base(t.program))
	}
	return fmt.Errorf("%s is not installed (Debian: %s)", t.program, t.pkg)
}

func (t *runningTool) wait() ToolResult {
	defer t.cancel()
	err := t.cmd.Wait()
	r := ToolResult{Output: t.output.String()}
	if err != nil {
		r.Error = fmt.Sprintf("%s: %v: %s", t.cmd, err, lastLine(r.Output))
	}
	if u, ok := t.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		r.CPU = (time.Duration(u.Utime.Nano()) + time.Duration(u.Stime.Nano())).Seconds()
	}
	return r
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// toolAttempts is how often a client tries until its server listens.
const toolAttempts = 20

// runTool runs both sides of a program, which prints what it has measured. The processor
// time includes that of its start, unless the program knows its own.
func (b *bench) runTool(r ToolRun) (s report.Sample, err error) {
	program, err := r.tool()
	if err != nil {
		return s, err
	}
	var result, served ToolResult
	var took time.Duration
	if program.alone {
		result, took, err = r.client()
	} else {
		serving := b.server.Go("Server.RunTool", r, &served, make(chan *rpc.Call, 1))
		for attempt := range toolAttempts {
			select {
			case <-serving.Done:
				return s, errors.Join(serving.Error, errors.New("the serving side has ended: "+served.Error))
			case <-time.After(time.Duration(20*(attempt+1)) * time.Millisecond):
			}
			if result, took, err = r.client(); err == nil {
				break
			}
		}
		if err != nil {
			err = errors.Join(err, b.server.Call("Server.Close", r.key(), new(struct{})))
		}
		<-serving.Done
	}
	if err != nil {
		return s, err
	}
	if s, err = program.parse(r, result.Output); err == nil {
		err = credible(&s, took)
	}
	if !program.alone {
		s.CPU = result.CPU + served.CPU
	}
	return s, err
}

// client runs the measuring side of the program.
func (r ToolRun) client() (result ToolResult, took time.Duration, err error) {
	began := time.Now()
	running, err := r.start(false)
	if err != nil {
		return result, 0, err
	}
	if result = running.wait(); result.Error != "" {
		err = errors.New(result.Error)
	}
	return result, time.Since(began), err
}

// credible returns an error if a program that ran for the given time cannot have measured
// what it says: perftest guesses the frequency of the processor's clock, and fails where
// the processor is busy or emulated.
func credible(s *report.Sample, took time.Duration) error {
	if s.Seconds > 0 && s.Seconds <= took.Seconds() && report.Known(s.P50) && report.Known(s.P99) {
		return nil
	}
	return fmt.Errorf("%w: it says that it took %g s of the %g s that it ran", errIncredible, s.Seconds, took.Seconds())
}

var errIncredible = errors.New("the program measures wrongly")

func perftestLatency(program string, flags ...string) tool {
	return perftest(program, flags, false, func(r ToolRun, field []float64) report.Sample {
		// #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%,
		// in µs of half a round trip
		s := report.Sample{Ops: r.Count, P50: field[4] * 1e3, P99: field[7] * 1e3, Mean: field[5] * 1e3}
		s.Seconds = 2 * s.Mean / 1e9 * float64(r.Count)
		s.Bytes = 2 * r.Count * r.Size
		return s
	})
}

func perftestBandwidth(program string) tool {
	return perftest(program, nil, true, func(r ToolRun, field []float64) report.Sample {
		// #bytes #iterations BW-peak BW-average MsgRate, in MiB/s and
		// millions/s; iterations are of all connections
		s := report.Sample{Ops: r.Count * r.Conns, Bytes: r.Count * r.Conns * r.Size}
		s.Seconds = float64(s.Bytes) / (field[3] * (1 << 20))
		return s
	})
}

// perftest runs a program of linux-rdma/perftest, whose result is the line
// behind the one that begins with #bytes.
func perftest(program string, flags []string, many bool, sample func(ToolRun, []float64) report.Sample) tool {
	return tool{
		program: program,
		pkg:     "perftest",
		many:    many,
		args: func(r ToolRun, server bool) []string {
			args := append([]string{"-F", "-s", strconv.Itoa(r.Size), "-n", strconv.Itoa(r.Count), "-p", strconv.Itoa(r.Port)}, flags...)
			if r.Device != "" {
				args = append(args, "-d", r.Device)
			}
			if r.Conns > 1 {
				args = append(args, "-q", strconv.Itoa(r.Conns))
			}
			if !server {
				args = append(args, r.Address)
			}
			return args
		},
		parse: func(r ToolRun, output string) (report.Sample, error) {
			field, err := fieldsAfter(output, "#bytes", 5)
			if err != nil {
				return report.Sample{}, err
			}
			return sample(r, field), nil
		},
	}
}

// raw runs the program in C of tools/idealcard on this host's device: that beside this program, or
// the card's, which is in PATH.
func raw() map[string]tool {
	program := "raw"
	if self, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(self), program); (tool{program: beside}).there() == nil {
			program = beside
		}
	}
	all := make(map[string]tool)
	for key, of := range map[string]string{"turn": "", "ping-pong": "", "ping-pong-1us": "ping-pong", "stream": "", "event-1": "", "event-4": "", "event-10": "", "event-40": ""} {
		all[key] = tool{
			program: program, alone: true,
			args: func(r ToolRun, _ bool) []string {
				args := []string{cmp.Or(of, key), strconv.Itoa(cmp.Or(r.Size, rowBytes)), strconv.Itoa(int(max(r.Slice.Milliseconds(), 1)))}
				if r.Device == "" {
					return args
				}
				args = append(args, r.Device)
				if ip := net.ParseIP(r.Address); ip.To4() != nil {
					args = append(args, r.Address)
				}
				return args
			},
			parse: func(_ ToolRun, output string) (s report.Sample, err error) {
				err = json.Unmarshal([]byte(output), &s)
				switch cmp.Or(of, key) {
				case "stream":
					s.P50 = 0
				case "ping-pong":
					s.Ops /= 2 // it counts both ways
				}
				return s, err
			},
		}
	}
	return all
}

func rstream(flags ...string) map[string]tool {
	program := func(count func(r ToolRun) (iterations, transfers int), sample func(ToolRun, float64) report.Sample) tool {
		return tool{
			program: "rstream",
			pkg:     "rdmacm-utils",
			args: func(r ToolRun, server bool) []string {
				iterations, transfers := count(r)
				args := append([]string{"-S", strconv.Itoa(r.Size), "-p", strconv.Itoa(r.Port),
					"-I", strconv.Itoa(iterations), "-C", strconv.Itoa(transfers)}, flags...)
				if server {
					return append(args, "-b", r.Address)
				}
				return append(args, "-s", r.Address)
			},
			parse: func(r ToolRun, output string) (report.Sample, error) {
				// name bytes xfers iters total time Gb/sec usec/xfer: the last
				// is the time by the number of messages in both directions
				field, err := fieldsAfter(output, "name", 8)
				if err != nil {
					return report.Sample{}, err
				}
				s := sample(r, field[7]*1e3)
				s.Seconds = 2 * field[7] / 1e6 * float64(r.Count)
				s.Bytes = 2 * r.Count * r.Size
				return s, nil
			},
		}
	}
	return map[string]tool{
		// One message this way, one that way. The program knows means only.
		"ping-pong": program(
			func(r ToolRun) (int, int) { return r.Count, 1 },
			func(r ToolRun, ns float64) report.Sample { return report.Sample{Ops: r.Count, Mean: ns} }),
		// All messages this way, then all that way.
		"stream": program(
			func(r ToolRun) (int, int) { return 1, r.Count },
			func(r ToolRun, ns float64) report.Sample { return report.Sample{Ops: 2 * r.Count} }),
	}
}

// fieldsAfter returns the numbers in the line behind the one that begins with
// the word; what is no number is 0.
func fieldsAfter(output, word string, want int) ([]float64, error) {
	lines := strings.Split(output, "\n")
	for i, line := range lines[:len(lines)-1] {
		if !strings.HasPrefix(strings.TrimSpace(line), word) {
			continue
		}
		words := strings.Fields(lines[i+1])
		if len(words) < want {
			break
		}
		numbers := make([]float64, len(words))
		for i, w := range words {
			numbers[i], _ = strconv.ParseFloat(w, 64)
		}
		return numbers, nil
	}
	return nil, fmt.Errorf("no result in the output: %s", lastLine(output))
}
