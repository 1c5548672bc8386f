// Idealcard runs a command where there is an ideal RDMA card: an emulation in user space, whose
// speed is that of memory, for processes that are both ends of their connections.
//
//	idealcard [flags] -- COMMAND ARG…
//
// README.md says what the card models. The command finds libibverbs and librdmacm that are the
// card, the files by which programs look for a device, SOFTROCE_ADDR and SOFTROCE_ADDR6, which
// are addresses of the card, SOFTROCE_DEVICE, and the program raw, which measures the card without
// ringnet.
//
// Its exit status is the command's; 128+N when signal N ended it; 125 when idealcard failed; or
// 1 if the command succeeded but a message found no receive posted (RNR), which ringnet
// promises never to happen.
//
// Idealcard is for Linux. It needs a C compiler, the headers of rdma-core, and root or a
// kernel that lets users make namespaces.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Exit statuses of the tool itself, as timeout(1) has them.
const (
	exitFailed = 125
	exitSignal = 128 // and the number of the signal
)

// options is the command line.
type options struct {
	latency time.Duration
	dma     string
	rnr     bool
	command []string
}

func main() {
	if os.Args[0] == inside {
		err := enter(os.Args[1], os.Args[2:])
		fmt.Fprintln(os.Stderr, "idealcard:", err)
		os.Exit(exitFailed)
	}
	// The parent-death signal is tied to the thread that starts the command.
	runtime.LockOSThread()
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	status := exitFailed
	if err == nil {
		status, err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "idealcard:", err)
	}
	os.Exit(status)
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("idealcard", flag.ContinueOnError)
	flags.DurationVar(&o.latency, "latency", 0, "`time` from a post until the peer sees the completion")
	flags.StringVar(&o.dma, "dma", "copy", "copy, or free: payloads of RDMA writes from 4096 bytes on cost nothing, because they do not arrive")
	flags.BoolVar(&o.rnr, "rnr", false, "messages may find no receive posted")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.command = flags.Args()
	switch {
	case len(o.command) == 0:
		return o, errors.New("no command to run; it follows the flags: idealcard [flags] -- COMMAND ARG...")
	case o.dma != "copy" && o.dma != "free":
		return o, fmt.Errorf("-dma %s: there are copy and free", o.dma)
	case o.latency < 0:
		return o, fmt.Errorf("-latency %v: it must not be negative", o.latency)
	}
	return o, nil
}

// run runs the command and returns the exit status of the tool.
func run(o options) (int, error) {
	libraries, err := build()
	if err != nil {
		return exitFailed, err
	}
	dir, err := os.MkdirTemp("", "idealcard")
	if err != nil {
		return exitFailed, err
	}
	defer os.RemoveAll(dir)
	if err := describe(dir); err != nil {
		return exitFailed, err
	}
	status, err := runInside(dir, o.command, o.environment(libraries))
	if err != nil {
		return status, err
	}
	for _, name := range counters {
		n, err := os.ReadFile(filepath.Join(dir, device, "ports/1/hw_counters", name))
		if err != nil {
			return exitFailed, err
		}
		if rose := strings.TrimSpace(string(n)); rose != "0" && status == 0 && !(o.rnr && name == noReceive) {
			return 1, fmt.Errorf("%s rose by %s", name, rose)
		}
	}
	return status, nil
}

// environment is what the command finds in its environment.
func (o options) environment(libraries string) []string {
	before := func(name string) string {
		if old := os.Getenv(name); old != "" {
			return name + "=" + libraries + ":" + old
		}
		return name + "=" + libraries
	}
	return append(os.Environ(), before("LD_LIBRARY_PATH"), before("PATH"),
		"SOFTROCE_ADDR=127.0.0.1", "SOFTROCE_ADDR6=::1", "SOFTROCE_DEVICE="+device,
		fmt.Sprintf("IDEAL_LATENCY_NS=%d", o.latency), "IDEAL_DMA="+o.dma)
}

// exitStatus is the exit status of a shell for a command that ended with err.
func exitStatus(err error) (int, error) {
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) {
		return 0, err
	}
	if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
		return exitSignal + int(ws.Signal()), nil
	}
	return exit.ExitCode(), nil
}
