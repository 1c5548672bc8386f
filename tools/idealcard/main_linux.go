// Idealcard runs a command where there are ideal RDMA cards: an emulation in user space, whose
// speed is that of memory. They connect the processes of the command.
//
//	idealcard [flags] -- COMMAND ARG…
//
// README.md says what the cards model, and what a file of -fabric has. The command finds libibverbs
// and librdmacm that are the cards, the files by which programs look for a device, SOFTROCE_ADDR
// and SOFTROCE_ADDR6, which are addresses of the first card, SOFTROCE_DEVICE, which is its name, and
// the programs raw, which measures the card without ringnet, and rdma.
//
// Its exit status is the command's; 128+N when signal N ended it; 125 when idealcard failed; or
// 1 if the command succeeded but a message found no receive posted (RNR), which ringnet
// promises never to happen.
//
// Idealcard is for Linux. It needs the libraries and programs that card/Makefile makes, in a folder "card"
// beside it, which "make bin/idealcard" does, and root or a kernel that lets users make namespaces.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
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
	faults  string
	release string // of rdma-core; "": none
	fabric  *cardFabric
	command []string
}

func main() {
	// Parent-death signals, rights and network namespaces are those of the thread that starts a process.
	runtime.LockOSThread()
	if os.Args[0] == inside {
		status, err := enter(os.Args[1], os.Args[2:])
		if err != nil {
			fmt.Fprintln(os.Stderr, "idealcard:", err)
			status = exitFailed
		}
		os.Exit(status)
	}
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "idealcard:", err)
		os.Exit(exitFailed)
	}
	status, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "idealcard:", err)
	}
	if status != 0 && o.draws() {
		fmt.Fprintf(os.Stderr, "idealcard: it failed with -seed %d\n", o.fabric.Seed)
	}
	os.Exit(status)
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("idealcard", flag.ContinueOnError)
	flags.DurationVar(&o.latency, "latency", 0, "`time` from a post until the peer sees the completion")
	flags.StringVar(&o.dma, "dma", "copy", "copy, or free: payloads of RDMA writes from 4096 bytes on cost nothing, because they do not arrive")
	flags.BoolVar(&o.rnr, "rnr", false, "messages may find no receive posted")
	flags.StringVar(&o.faults, "faults", "", "`schedule` of faults, such as out=50ms,qp=1e-5,kill@2000: README.md has the kinds")
	manners := flags.String("manners", "", "`names` of manners that all cards have, between commas: README.md")
	flags.StringVar(&o.release, "rdma-core", "", "`version` that libibverbs' file says, such as 50.0")
	seed := flags.Uint64("seed", 0, "`number` that decides what manners and faults draw; 0: any, which is printed if the command fails")
	path := flags.String("fabric", "", "`file` that describes the cards: README.md has the format")
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
	if o.release != "" && !regexp.MustCompile(`^\d+\.\d+$`).MatchString(o.release) {
		return o, fmt.Errorf("-rdma-core %s: it is a version such as 50.0", o.release)
	}
	if o.faults, err = parseFaults(o.faults); err != nil {
		return o, fmt.Errorf("-faults: %w", err)
	}
	if o.fabric, err = readFabric(*path); err != nil {
		return o, err
	}
	if o.fabric.Seed = *seed; *seed == 0 {
		o.fabric.Seed = rand.Uint64N(1e6) + 1
	}
	if err := o.fabric.behave(*manners); err != nil {
		return o, err
	}
	o.latency = cmp.Or(o.latency, time.Duration(o.fabric.Latency))
	return o, nil
}

// behave gives all cards manners.
func (f *cardFabric) behave(names string) error {
	for i := range f.Cards {
		if names != "" {
			f.Cards[i].Manners = append(f.Cards[i].Manners, strings.Split(names, ",")...)
		}
	}
	return f.check()
}

// draws reports whether anything happens that depends on the seed.
func (o options) draws() bool {
	return o.faults != "" || slices.ContainsFunc(o.fabric.Cards, func(c card) bool { return len(c.Manners) > 0 })
}

// run runs the command and returns the exit status of the tool.
func run(o options) (int, error) {
	// Before anything is made that has to be removed. The command gets what comes before it starts.
	caught := make(chan os.Signal, 8)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	self, err := os.Executable()
	if err != nil {
		return exitFailed, err
	}
	libraries := filepath.Join(filepath.Dir(self), "card")
	temp, err := filepath.Abs(os.TempDir()) // the command may run in another folder
	if err != nil {
		return exitFailed, err
	}
	dir, err := os.MkdirTemp(temp, "idealcard")
	if err != nil {
		return exitFailed, fmt.Errorf("%w: set TMPDIR to a folder for temporary files", err)
	}
	defer os.RemoveAll(dir)
	for i := range o.fabric.hosts() {
		if err := describe(hostDir(dir, i), o.fabric, i); err != nil {
			return exitFailed, err
		}
	}
	if o.release != "" {
		if libraries, err = o.pretend(dir, libraries); err != nil {
			return exitFailed, err
		}
	}
	h := &hosts{o: o, dir: dir, env: o.environment(libraries), caught: caught}
	stop, err := h.startFabric(filepath.Join(libraries, "host"))
	if err != nil {
		return exitFailed, err
	}
	defer stop()
	status, err := h.run()
	if err != nil {
		return status, err
	}
	for _, c := range o.fabric.Cards {
		if err := o.checkCounters(filepath.Join(hostDir(dir, c.Host), c.Name, "ports/1/hw_counters")); err != nil && status == 0 {
			return 1, err
		}
	}
	return status, nil
}

// pretend makes a folder with the libraries in which the file of libibverbs has the version of a release.
func (o options) pretend(dir, libraries string) (string, error) {
	to := filepath.Join(dir, "libraries")
	if err := errors.Join(os.Mkdir(to, 0o755), os.CopyFS(to, os.DirFS(libraries))); err != nil {
		return "", err
	}
	const name = "libibverbs.so.1"
	file := name + ".14." + o.release
	errs := []error{os.Rename(filepath.Join(to, name), filepath.Join(to, file)), os.Symlink(file, filepath.Join(to, name))}
	return to, errors.Join(errs...)
}

// checkCounters returns an error if a card has counted what is to fail the command. It counts at
// its first port.
func (o options) checkCounters(dir string) error {
	for _, name := range counters {
		n, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if rose := strings.TrimSpace(string(n)); rose != "0" && !(o.rnr && name == noReceive) {
			return fmt.Errorf("%s rose by %s", name, rose)
		}
	}
	return nil
}

// environment is what the command finds in its environment, and so does the program that gives the fabric.
func (o options) environment(libraries string) []string {
	before := func(name string) string {
		if old := os.Getenv(name); old != "" {
			return name + "=" + libraries + ":" + old
		}
		return name + "=" + libraries
	}
	return append(os.Environ(), before("LD_LIBRARY_PATH"), before("PATH"),
		"SOFTROCE_ADDR="+o.fabric.address("127.0.0.1", netip.Addr.Is4), "SOFTROCE_ADDR6="+o.fabric.address("::1", netip.Addr.Is6),
		"SOFTROCE_DEVICE="+o.fabric.Cards[0].Name, "IDEAL_CARDS="+o.fabric.lines(), "IDEAL_DMA="+o.dma, "IDEAL_FAULTS="+o.faults,
		fmt.Sprintf("IDEAL_SEED=%d", o.fabric.Seed), "IDEAL_MANNERS="+strings.Join(o.fabric.Cards[0].Manners, ","),
		fmt.Sprintf("IDEAL_LATENCY_NS=%d", o.latency),
		fmt.Sprintf("IDEAL_BYTES_S=%.0f", o.fabric.Gigabits*1e9/8), fmt.Sprintf("IDEAL_MESSAGES_S=%.0f", o.fabric.Messages))
}

// statusOf is the exit status of a shell for a command that ended with ws.
func statusOf(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return exitSignal + int(ws.Signal())
	}
	return ws.ExitStatus()
}
