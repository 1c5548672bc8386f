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
	"time"

	"github.com/ringnet/ringnet/benchmarks/process"
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
	report.Cell
	Address string // of the server
	Device  string // the client's RDMA device; "" for the program's choice
	Serves  string // the server's
	Port    int
	Count   int // messages of a connection
	Slice   time.Duration
}

// toolTime ends a program that has lost its other side.
const toolTime = time.Minute

// run runs a side of the program to its end.
func (r ToolRun) run(ctx context.Context, server bool) (output string, err error) {
	p, err := findPeer(r.Peer)
	if err != nil {
		return "", err
	}
	t := p.tools[r.Workload]
	return process.Call{Program: t.program, Args: t.args(r, server), Most: toolTime}.Run(ctx)
}

// there is an error that says what to do if the program is not there.
func (t tool) there(twoHosts bool) error {
	_, err := exec.LookPath(t.program)
	switch {
	case t.alone && twoHosts:
		return errors.New("it is one process, and so has one host; perftest is in C, too")
	case err == nil:
		return nil
	case t.alone:
		return fmt.Errorf("%s is not there: make card-report builds it, with a compiler and libibverbs-dev", filepath.Base(t.program))
	}
	return fmt.Errorf("%s is not installed (Debian: %s)", t.program, t.pkg)
}

// How many messages a connection of a program sends: at first, at least (perftest's own
// minimum) and at most.
const (
	firstCount = 20
	minCount   = 5
	maxCount   = 1 << 20
)

// measureTool is one round of a cell, before the first of which it is found out how many messages
// that is.
func (b *bench) measureTool(t tool, c report.Cell) (s report.Sample, err error) {
	if b.tools[c] == 0 && !t.alone {
		if s, err = b.runTool(t, c, firstCount); err != nil {
			return s, err
		}
	}
	return b.runTool(t, c, b.tools[c])
}

// runTool runs a program again while its result is not credible, up to three times.
func (b *bench) runTool(t tool, c report.Cell, count int) (s report.Sample, err error) {
	for range 3 {
		b.port++
		r := ToolRun{c, b.host, b.device, b.serverDevice(), b.port, max(count/c.Conns, minCount), b.slice}
		began, output := time.Now(), ""
		if output, err = b.runBoth(t, r); err != nil {
			return s, err
		}
		if s, err = t.parse(r, output); err != nil {
			return s, err
		}
		// perftest guesses the frequency of the processor's clock, and fails where the processor
		// is busy or emulated.
		took := time.Since(began).Seconds()
		if s.Seconds > 0 && s.Seconds <= took && report.Known(s.P50) && report.Known(s.P99) {
			b.tools[c] = int(min(max(float64(s.Ops)/s.Seconds*b.slice.Seconds(), minCount), maxCount))
			return s, nil
		}
		err = fmt.Errorf("the program measures wrongly: it says that it took %g s of the %g s that it ran", s.Seconds, took)
	}
	return s, err
}

// serverDevice is the device of the serving side, "" for the program's choice.
func (b *bench) serverDevice() string {
	if b.connect == "" {
		return b.device
	}
	return b.peerDevice
}

// firstToolPort is the port before those that programs listen on, one for each
// run.
const firstToolPort = 18600

// toolAttempts is how often a client tries until its server listens.
const toolAttempts = 20

// runBoth runs both sides of a program, and returns what the client has printed.
func (b *bench) runBoth(t tool, r ToolRun) (output string, err error) {
	if t.alone {
		return r.run(b.ctx, false)
	}
	serving := b.server.Go("Server.RunTool", r, new(struct{}), make(chan *rpc.Call, 1))
	for attempt := range toolAttempts {
		select {
		case <-serving.Done:
			return "", fmt.Errorf("the serving side has ended: %w", serving.Error)
		case <-time.After(time.Duration(20*(attempt+1)) * time.Millisecond):
		}
		if output, err = r.run(b.ctx, false); err == nil {
			break
		}
	}
	if err != nil {
		err = errors.Join(err, b.server.Call("Server.Close", r.key(), new(struct{})))
	}
	<-serving.Done
	return output, err
}

// key is the run's, by which its server ends it.
func (r ToolRun) key() string { return strconv.Itoa(r.Port) }

func perftestLatency(program string, flags ...string) tool {
	return perftest(program, flags, func(s *report.Sample, field []float64) {
		// #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%,
		// in µs of half a round trip
		s.P50, s.P99, s.Mean = field[4]*1e3, field[7]*1e3, field[5]*1e3
		s.Bytes, s.Seconds = 2*s.Bytes, 2*s.Mean/1e9*float64(s.Ops)
	})
}

func perftestBandwidth(program string) tool {
	t := perftest(program, nil, func(s *report.Sample, field []float64) {
		// #bytes #iterations BW-peak BW-average MsgRate, in MiB/s and
		// millions/s; iterations are of all connections
		s.Seconds = float64(s.Bytes) / (field[3] * (1 << 20))
	})
	t.many = true
	return t
}

// perftest runs a program of linux-rdma/perftest, whose result is the line
// behind the one that begins with #bytes. The sample has operations and their bytes at first.
func perftest(program string, flags []string, complete func(*report.Sample, []float64)) tool {
	return tool{
		program: program,
		pkg:     "perftest",
		args: func(r ToolRun, server bool) []string {
			args := append([]string{"-F", "-s", strconv.Itoa(r.Size), "-n", strconv.Itoa(r.Count), "-p", strconv.Itoa(r.Port)}, flags...)
			device := r.Device
			if server {
				device = r.Serves
			}
			if device != "" {
				args = append(args, "-d", device)
			}
			if r.Conns > 1 {
				args = append(args, "-q", strconv.Itoa(r.Conns))
			}
			if !server {
				args = append(args, r.Address)
			}
			return args
		},
		parse: func(r ToolRun, output string) (s report.Sample, err error) {
			field, err := fieldsAfter(output, "#bytes", 5)
			if err != nil {
				return s, err
			}
			s.Ops = r.Count * r.Conns
			s.Bytes = s.Ops * r.Size
			complete(&s, field)
			return s, nil
		},
	}
}

// raw runs the program in C of tools/idealcard on this host's device: that beside this program, or
// the card's, which is in PATH.
func raw() map[string]tool {
	program := "raw"
	if self, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(self), program); (tool{program: beside}).there(false) == nil {
			program = beside
		}
	}
	all := make(map[string]tool)
	for _, key := range []string{"turn", "ping-pong", "ping-pong-1us", "stream", "event-10"} {
		workload := strings.TrimSuffix(key, "-1us")
		all[key] = tool{
			program: program, alone: true,
			args: func(r ToolRun, _ bool) []string {
				args := []string{workload, strconv.Itoa(cmp.Or(r.Size, rowBytes)), strconv.Itoa(int(max(r.Slice.Milliseconds(), 1)))}
				if r.Device != "" {
					args = append(args, r.Device)
					if ip := net.ParseIP(r.Address); ip.To4() != nil {
						args = append(args, r.Address)
					}
				}
				return args
			},
			parse: func(_ ToolRun, output string) (s report.Sample, err error) {
				err = json.Unmarshal([]byte(output), &s)
				switch workload {
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
	program := func(pingPong bool) tool {
		return tool{
			program: "rstream",
			pkg:     "rdmacm-utils",
			args: func(r ToolRun, server bool) []string {
				iterations, transfers := 1, r.Count // all messages this way, then all that way
				if pingPong {
					iterations, transfers = r.Count, 1
				}
				args := append([]string{"-S", strconv.Itoa(r.Size), "-p", strconv.Itoa(r.Port),
					"-I", strconv.Itoa(iterations), "-C", strconv.Itoa(transfers)}, flags...)
				if server {
					return append(args, "-b", r.Address)
				}
				return append(args, "-s", r.Address)
			},
			parse: func(r ToolRun, output string) (s report.Sample, err error) {
				// name bytes xfers iters total time Gb/sec usec/xfer: the last
				// is the time by the number of messages in both directions
				field, err := fieldsAfter(output, "name", 8)
				if err != nil {
					return s, err
				}
				s.Ops = 2 * r.Count
				s.Bytes, s.Seconds = s.Ops*r.Size, field[7]/1e6*float64(s.Ops)
				if pingPong {
					s.Ops, s.Mean = r.Count, field[7]*1e3 // means are all that it knows
				}
				return s, nil
			},
		}
	}
	return map[string]tool{"ping-pong": program(true), "stream": program(false)}
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
	return nil, fmt.Errorf("no result in the output: %s", process.LastLine(output))
}
