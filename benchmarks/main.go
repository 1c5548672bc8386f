package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/signal"
	"path/filepath"
	"slices"

	"github.com/ringnet/ringnet/benchmarks/cardreport"
	"github.com/ringnet/ringnet/benchmarks/charts"
	"github.com/ringnet/ringnet/benchmarks/process"
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
	switch {
	case slices.Equal(args, []string{strangerArgument}):
		beStranger()
	case len(args) > 0 && args[0] == cardreport.Argument:
		return cardreport.Run(args[1:], newServer)
	}
	o, err := parse(args)
	switch {
	case err != nil:
		return err
	case o.listen != "":
		return o.serve()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
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
		options: o, ctx: ctx, server: server, report: new(Report), tools: make(map[report.Cell]int),
		port: firstToolPort, show: report.NewProgress(os.Stderr),
	}
	b.runner = workload.Runner{Slice: o.slice, Usage: b.usages, Strangers: b.others.processorTime, Note: b.show.Note}
	if o.onDevice() && o.oneProcess {
		b.runner.Several = coarse
	}
	if err := b.run(); err != nil {
		return err
	}
	write := report.Table.Text
	if o.markdown {
		write = report.Table.Markdown
	}
	b.report.print(os.Stdout, write, o.tail)
	if o.out != "" {
		if err := b.report.write(o.out); err != nil {
			return err
		}
		fmt.Printf("\nresults.json and charts are in %s\n", o.out)
	}
	return b.report.Failure()
}

// write leaves results.json and the charts in the folder, which exists.
func (r *Report) write(dir string) error {
	_, err := charts.Sizes(&r.Report, dir)
	return errors.Join(err, report.WriteJSON(filepath.Join(dir, "results.json"), r))
}

// serve is the server, for one client if it is a child.
func (o *options) serve() error {
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	if !o.once {
		fmt.Println("listening on", l.Addr())
		return process.ServeAll(l, func() []process.Server { return []process.Server{newServer()} })
	}
	process.Ready(l.Addr().String())
	c, err := l.Accept()
	if err == nil {
		process.Serve(c, newServer())
	}
	return err
}

// reach connects to the server that was named or, without one, to another process of this program
// or to this one.
func (o *options) reach() (server *rpc.Client, end func(), err error) {
	switch {
	case o.connect != "":
		server, err = rpc.Dial("tcp", o.connect)
		return server, func() {}, err
	case o.oneProcess:
		return process.Within(newServer()), func() {}, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	child, err := process.Start(self, "-listen", "127.0.0.1:0", "-once")
	if err != nil {
		return nil, nil, err
	}
	server, err = rpc.Dial("tcp", child.Address)
	return server, child.Kill, err
}
