package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/perf"
)

// tool is a program that measures by itself, with a server and a client.
type tool struct {
	program string
	pkg     string // of Debian
	args    func(r ToolRun, server bool) []string
	parse   func(r ToolRun, output string) (perf.Sample, error)
	many    bool // can do several connections
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
}

// toolTimeout ends a program that has lost its other side.
const toolTimeout = time.Minute

type toolCommand struct {
	tool tool
	args []string
	err  error
}

func (r ToolRun) server() toolCommand { return r.command(true) }
func (r ToolRun) client() toolCommand { return r.command(false) }

func (r ToolRun) command(server bool) toolCommand {
	p, err := findPeer(r.Peer)
	if err != nil {
		return toolCommand{err: err}
	}
	t, ok := p.tools[r.Workload]
	if !ok {
		return toolCommand{err: fmt.Errorf("%s has no program for %s", p.name, r.Workload)}
	}
	return toolCommand{tool: t, args: t.args(r, server)}
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

func (c toolCommand) start() (*runningTool, error) {
	if c.err != nil {
		return nil, c.err
	}
	if _, err := exec.LookPath(c.tool.program); err != nil {
		return nil, fmt.Errorf("%s is not installed (Debian: %s)", c.tool.program, c.tool.pkg)
	}
	ctx, cancel := context.WithTimeout(context.Background(), toolTimeout)
	t := &runningTool{cmd: exec.CommandContext(ctx, c.tool.program, c.args...), cancel: cancel}
	t.cmd.Stdout, t.cmd.Stderr = &t.output, &t.output
	if err := t.cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	return t, nil
}

func (t *runningTool) kill() { t.cancel() }

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
// time includes that of its start.
func (b *bench) runTool(r ToolRun) (perf.Sample, error) {
	var id int
	if err := b.server.Call("Server.StartTool", r, &id); err != nil {
		return perf.Sample{}, err
	}
	var result ToolResult
	var took time.Duration
	for attempt := range toolAttempts {
		time.Sleep(time.Duration(20*(attempt+1)) * time.Millisecond)
		start := time.Now()
		running, err := r.client().start()
		if err != nil {
			return perf.Sample{}, errors.Join(err, b.endTool(id, true, new(ToolResult)))
		}
		if result = running.wait(); result.Error == "" {
			took = time.Since(start)
			break
		}
	}
	var served ToolResult
	if err := b.endTool(id, result.Error != "", &served); err != nil {
		return perf.Sample{}, err
	}
	if result.Error != "" {
		return perf.Sample{}, errors.New(result.Error)
	}
	s, err := r.client().tool.parse(r, result.Output)
	if err == nil {
		err = credible(&s, took)
	}
	s.CPU = result.CPU + served.CPU
	return s, err
}

// credible returns an error if a program that ran for the given time cannot have measured
// what it says: perftest guesses the frequency of the processor's clock, and fails where
// the processor is busy or emulated.
func credible(s *perf.Sample, took time.Duration) error {
	if s.Seconds > 0 && s.Seconds <= took.Seconds() && perf.Known(s.P50) && perf.Known(s.P99) {
		return nil
	}
	return fmt.Errorf("%w: it says that it took %g s of the %g s that it ran", errIncredible, s.Seconds, took.Seconds())
}

var errIncredible = errors.New("the program measures wrongly")

func (b *bench) endTool(id int, now bool, r *ToolResult) error {
	return b.server.Call("Server.EndTool", EndTool{id, now}, r)
}

func perftestLatency(program string, flags ...string) tool {
	return perftest(program, flags, false, func(r ToolRun, field []float64) perf.Sample {
		// #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%,
		// in µs of half a round trip
		s := perf.Sample{Ops: r.Count, P50: field[4] * 1e3, P99: field[7] * 1e3, Mean: field[5] * 1e3}
		s.Seconds = 2 * s.Mean / 1e9 * float64(r.Count)
		s.Bytes = 2 * r.Count * r.Size
		return s
	})
}

func perftestBandwidth(program string) tool {
	return perftest(program, nil, true, func(r ToolRun, field []float64) perf.Sample {
		// #bytes #iterations BW-peak BW-average MsgRate, in MiB/s and
		// millions/s; iterations are of all connections
		s := perf.Sample{Ops: r.Count * r.Conns, Bytes: r.Count * r.Conns * r.Size}
		s.Seconds = float64(s.Bytes) / (field[3] * (1 << 20))
		return s
	})
}

// perftest runs a program of linux-rdma/perftest, whose result is the line
// behind the one that begins with #bytes.
func perftest(program string, flags []string, many bool, sample func(ToolRun, []float64) perf.Sample) tool {
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
		parse: func(r ToolRun, output string) (perf.Sample, error) {
			field, err := fieldsAfter(output, "#bytes", 5)
			if err != nil {
				return perf.Sample{}, err
			}
			return sample(r, field), nil
		},
	}
}

func rstream(flags ...string) map[string]tool {
	program := func(count func(r ToolRun) (iterations, transfers int), sample func(ToolRun, float64) perf.Sample) tool {
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
			parse: func(r ToolRun, output string) (perf.Sample, error) {
				// name bytes xfers iters total time Gb/sec usec/xfer: the last
				// is the time by the number of messages in both directions
				field, err := fieldsAfter(output, "name", 8)
				if err != nil {
					return perf.Sample{}, err
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
			func(r ToolRun, ns float64) perf.Sample { return perf.Sample{Ops: r.Count, Mean: ns} }),
		// All messages this way, then all that way.
		"stream": program(
			func(r ToolRun) (int, int) { return 1, r.Count },
			func(r ToolRun, ns float64) perf.Sample { return perf.Sample{Ops: 2 * r.Count} }),
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
