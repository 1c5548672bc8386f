package main

// This file reads the command line and decides where the command runs.

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Exit statuses of the tool itself, as timeout(1) has them.
const (
	exitTimeout       = 124
	exitFailed        = 125
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // and the number of the signal
)

// options is the command line.
type options struct {
	nodes    int
	cables   int
	guest    bool
	timeout  time.Duration
	scratch  string // absolute, or empty
	env      []string
	commands [][]string // one for each node
}

// timeoutError is the cause of a context that -timeout has ended.
type timeoutError time.Duration

func (e timeoutError) Error() string {
	return fmt.Sprintf("cut off after %v (-timeout)", time.Duration(e))
}

const usage = `usage: softroce [flags] -- COMMAND ARG...
       softroce -nodes 2 [flags] -- COMMAND0 ARG... [-- COMMAND1 ARG...]

Runs a command where there is an RDMA device: here when the host has one, else in
a QEMU guest with soft-RoCE. The documentation of the package has the environment
of the command, the exit statuses, and all else ("go -C tools/softroce doc").

flags:
`

func main() {
	// The parent-death signal that ends QEMU with the tool is tied to the
	// thread that starts QEMU: it must be one that lives as long as the tool.
	runtime.LockOSThread()
	if os.Getpid() == 1 && len(os.Args) == 2 && os.Args[1] == guestInit {
		guestMain()
	}
	opts, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "softroce:", err)
		os.Exit(exitFailed)
	}
	dieWithGoCommand()
	status, err := run(opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, "softroce:", err)
	}
	os.Exit(status)
}

// parse reads the command line; usage and complaints about flags go to w.
func parse(args []string, w io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("softroce", flag.ContinueOnError)
	fs.SetOutput(w)
	fs.Usage = func() {
		fmt.Fprint(w, usage)
		fs.PrintDefaults()
	}
	fs.IntVar(&o.nodes, "nodes", 1, "`number` of nodes: 1, or 2 guests joined by a cable")
	fs.IntVar(&o.cables, "cables", 1, "`number` of cables that join two nodes: 1 or 2")
	fs.BoolVar(&o.guest, "guest", false, "run in a guest even when there is a device here")
	fs.DurationVar(&o.timeout, "timeout", 10*time.Minute, "cut everything off after this `time`; 0 means never")
	fs.StringVar(&o.scratch, "scratch", "", "existing `folder` whose content a guest shares with the host")
	fs.Func("env", "`names` of environment variables to hand to a guest, separated by commas; NAME* is a prefix; may be repeated", func(names string) error {
		for name := range strings.SplitSeq(names, ",") {
			o.env = append(o.env, strings.TrimSpace(name))
		}
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.commands = split(fs.Args(), o.nodes)
	return o, o.complete()
}

// complete returns an error for what cannot be, and works out what follows from the
// flags.
func (o *options) complete() error {
	if o.nodes != 1 && o.nodes != 2 {
		return fmt.Errorf("-nodes %d: there can be 1 or 2", o.nodes)
	}
	if o.cables != 1 && (o.cables != 2 || o.nodes != 2) {
		return fmt.Errorf("-cables %d: there can be 1, or 2 with -nodes 2", o.cables)
	}
	if o.timeout < 0 {
		return fmt.Errorf("-timeout %v: it must not be negative", o.timeout)
	}
	if o.scratch != "" {
		dir, err := filepath.Abs(o.scratch)
		if err != nil {
			return err
		}
		if info, err := os.Stat(dir); err != nil {
			return fmt.Errorf("-scratch: %w", err)
		} else if !info.IsDir() {
			return fmt.Errorf("-scratch: %s is not a folder", dir)
		}
		o.scratch = dir
	}
	for _, c := range o.commands {
		if len(c) == 0 {
			return errors.New("no command to run; it follows the flags: softroce [flags] -- COMMAND ARG...")
		}
	}
	return nil
}

// split gives each node its command: with two nodes the arguments may hold a
// separator, and without one both nodes run the same.
func split(args []string, nodes int) [][]string {
	if nodes == 1 {
		return [][]string{args}
	}
	if i := slices.Index(args, "--"); i >= 0 {
		return [][]string{args[:i], args[i+1:]}
	}
	return [][]string{args, args}
}

// run runs the command in the first place that can be had and returns the exit
// status of the tool.
func run(opts options) (int, error) {
	ctx := context.Background()
	if opts.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, opts.timeout, timeoutError(opts.timeout))
		defer cancel()
	}
	status, err := dispatch(ctx, opts)
	if err == nil {
		return status, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		if !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return exitTimeout, err
	}
	if status == 0 {
		status = exitFailed
	}
	return status, err
}

func dispatch(ctx context.Context, opts options) (int, error) {
	if !opts.guest && opts.nodes == 1 {
		if dev := findDevice(sysInfiniband, interfaceAddrs); dev != nil {
			return runHere(ctx, opts, dev)
		}
	}
	image, err := prepare(ctx)
	if err != nil {
		return 0, err
	}
	return runGuests(ctx, opts, image)
}

// dieWithGoCommand asks for SIGTERM when the parent dies and the parent is the
// go command: a killed "go run" or "go test" would leave the tool, and with it
// the guest, running until the timeout.
func dieWithGoCommand() {
	parent := os.Getppid()
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent))
	if err != nil || strings.TrimSpace(string(comm)) != "go" {
		return
	}
	if unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0) == nil && os.Getppid() != parent {
		os.Exit(exitSignal + int(unix.SIGTERM))
	}
}
