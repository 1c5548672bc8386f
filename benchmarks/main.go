package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/ringnet/ringnet/internal/perf/report"
	"github.com/ringnet/ringnet/internal/perf/workload"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "benchmarks:", err)
		}
		os.Exit(1)
	}
}

func run(args []string) error {
	if slices.Equal(args, []string{strangerArgument}) {
		return beStranger()
	}
	o, err := parse(args)
	switch {
	case err != nil:
		return err
	case o.listen != "":
		return serve(o.listen, o.once)
	case o.compare != "":
		return compare(os.Stdout, o.compare)
	}
	host, err := o.host()
	if err != nil {
		return err
	}
	if o.out != "" {
		if err := os.MkdirAll(o.out, 0o755); err != nil {
			return err
		}
	}
	server, end, err := o.reach()
	if err != nil {
		return err
	}
	defer end()
	b := &bench{
		options: o.options, server: server, host: host, device: o.device,
		report: &Report{Commit: o.commit}, counts: make(map[report.Cell]int), starts: make(map[report.Cell]report.Sample), port: firstToolPort, show: report.NewProgress(os.Stderr),
	}
	b.runner = workload.Runner{Slice: o.slice, Usage: b.usages, Strangers: b.others.processorTime, Note: b.show.Note}
	if o.onDevice && o.oneProcess {
		b.runner.Several = coarse
	}
	b.report.Begin()
	b.report.Rounds, b.report.Slice = o.rounds, o.slice
	if o.onDevice {
		b.report.Machine.Device = o.device
	}
	err = b.run()
	b.show.End()
	if err != nil {
		return err
	}
	b.report.Summarise()
	if o.card != "" {
		b.report.printCard(os.Stdout)
	} else {
		b.report.print(os.Stdout, o.markdown)
	}
	if o.out != "" {
		if err := b.report.write(o.out); err != nil {
			return err
		}
		fmt.Printf("\nresults.json and charts are in %s\n", o.out)
	}
	return b.verdict()
}

// firstToolPort is the port before those that programs listen on, one for each
// run.
const firstToolPort = 18600

// listening comes before the address that a server tells its parent.
const listening = "listening on "

func serve(address string, once bool) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println(listening + l.Addr().String())
	return serveControl(l, once)
}

// reach connects to the server at the address or, without one, to another
// process of this program, which ends with the connection, or to this one.
func (o *invocation) reach() (*rpc.Client, func(), error) {
	if o.connect != "" {
		c, err := rpc.Dial("tcp", o.connect)
		if err != nil {
			return nil, nil, err
		}
		return c, func() { c.Close() }, nil
	}
	if o.oneProcess {
		near, far := net.Pipe()
		go func() { _ = serveClient(far) }()
		return rpc.NewClient(near), func() { near.Close() }, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	child := exec.Command(self, "-listen", "127.0.0.1:0", "-once")
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := child.Start(); err != nil {
		return nil, nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, nil, errors.Join(err, child.Wait())
	}
	c, err := rpc.Dial("tcp", strings.TrimSpace(strings.TrimPrefix(line, listening)))
	if err != nil {
		return nil, nil, errors.Join(err, child.Process.Kill(), child.Wait())
	}
	return c, func() {
		c.Close()
		if err := child.Wait(); err != nil {
			fmt.Fprintln(os.Stderr, "benchmarks: server:", err)
		}
	}, nil
}

// verdict is an error if something that is there could not be measured in any
// round, but by another version, which may not have it.
func (b *bench) verdict() error {
	var errs []error
	for _, r := range b.report.Results {
		if p, err := findPeer(r.Peer); r.Median.Rounds == 0 && (err != nil || p.beside == nil) {
			errs = append(errs, fmt.Errorf("%v: %s", r.Cell, r.Error))
		}
	}
	return errors.Join(errs...)
}
