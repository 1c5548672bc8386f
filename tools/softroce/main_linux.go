package main

// This file reads the command line and decides where the command runs.

import (
	"cmp"
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
	kernel   string // of a guest: its name for getKernel, or empty
	accel    string // accelKVM, accelTCG, or empty for the better one that works
	timeout  time.Duration
	scratch  string     // absolute, or empty
	commands [][]string // one for each node
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
	fs.StringVar(&o.kernel, "kernel", os.Getenv("SOFTROCE_KERNEL"), "run in a guest with this `kernel`: a suite of Debian's, such as trixie, or a release; \"list\" says which suites can be had")
	fs.StringVar(&o.accel, "accel", os.Getenv("SOFTROCE_ACCEL"), "`accelerator` of QEMU: kvm, tcg (emulation), or by default kvm where it works")
	fs.DurationVar(&o.timeout, "timeout", 10*time.Minute, "cut everything off after this `time`; 0 means never")
	fs.StringVar(&o.scratch, "scratch", "", "existing `folder` whose content a guest shares with the host")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.commands = [][]string{fs.Args()}
	if o.nodes == 2 {
		first, second := fs.Args(), fs.Args()
		if i := slices.Index(first, "--"); i >= 0 {
			first, second = first[:i], first[i+1:]
		}
		o.commands = [][]string{first, second}
	}
	return o, o.complete()
}

// complete returns an error for what cannot be, and makes the path of a folder absolute.
func (o *options) complete() (err error) {
	if o.nodes != 1 && o.nodes != 2 {
		return fmt.Errorf("-nodes %d: there can be 1 or 2", o.nodes)
	}
	if o.cables != 1 && (o.cables != 2 || o.nodes != 2) {
		return fmt.Errorf("-cables %d: there can be 1, or 2 with -nodes 2", o.cables)
	}
	if o.scratch != "" {
		if o.scratch, err = filepath.Abs(o.scratch); err != nil {
			return err
		}
		if info, err := os.Stat(o.scratch); err != nil || !info.IsDir() {
			return fmt.Errorf("-scratch: there is no folder %s", o.scratch)
		}
	}
	if !slices.Contains([]string{"", accelKVM, accelTCG}, o.accel) {
		return fmt.Errorf("-accel %s: there are kvm and tcg", o.accel)
	}
	if o.kernel != "" && !kernelNames.MatchString(o.kernel) {
		return fmt.Errorf("-kernel %s: it is neither a suite's name nor a release", o.kernel)
	}
	if o.kernel == listKernels {
		return nil
	}
	if slices.ContainsFunc(o.commands, func(c []string) bool { return len(c) == 0 }) {
		return errors.New("no command to run; it follows the flags: softroce [flags] -- COMMAND ARG...")
	}
	return nil
}

// run runs the command in the first place that can be had and returns the exit
// status of the tool.
func run(opts options) (int, error) {
	ctx := context.Background()
	if opts.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, opts.timeout, fmt.Errorf("cut off after %v (-timeout)", opts.timeout))
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
	return cmp.Or(status, exitFailed), err
}

func dispatch(ctx context.Context, opts options) (int, error) {
	if opts.kernel == listKernels {
		m, err := thisMachine()
		if err != nil {
			return 0, err
		}
		updateLists(ctx)
		lines, err := kernels(ctx, m)
		fmt.Print(lines)
		return 0, err
	}
	if !opts.guest && opts.nodes == 1 && opts.kernel == "" {
		if found := findDevices(1, sysInfiniband, interfaceAddrs()); len(found.all) > 0 {
			return runHere(ctx, opts, found)
		}
	}
	image, err := prepare(ctx, opts.kernel)
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
