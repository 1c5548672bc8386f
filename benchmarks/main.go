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
	"strconv"
	"strings"
	"time"

	"github.com/ringnet/ringnet/internal/perf"
)

// options say what is measured, and how long.
type options struct {
	rounds    int
	slice     time.Duration
	sizes     []int
	conns     []int // nil for what each workload is measured with
	idle      []int
	peers     []string
	workloads []string
	library   bool
	onDevice  bool // RDMA
	out       string
	check     bool
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "benchmarks:", err)
		}
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	var (
		rdma    = flags.Bool("rdma", false, "measure on this host's RDMA device")
		address = flags.String("address", os.Getenv("SOFTROCE_ADDR"), "with -rdma, the `IP` address of the device's network interface; default $SOFTROCE_ADDR")
		device  = flags.String("device", os.Getenv("SOFTROCE_DEVICE"), "RDMA `device` for perftest; default $SOFTROCE_DEVICE, or perftest's choice")
		listen  = flags.String("listen", "", "be the server, at this TCP `address`, for a client with -connect")
		connect = flags.String("connect", "", "measure against the server at this TCP `address`")
		once    = flags.Bool("once", false, "with -listen, end after the first client")
		quick   = flags.Bool("quick", false, "a smoke test: one short round of little, whose figures mean nothing")
		other   = flags.String("beside", "", "measure another version beside this one, too: the `file` is a build of this program there")
		o       options
		lists   lists
	)
	flags.IntVar(&o.rounds, "rounds", 7, "how often everything is measured")
	flags.DurationVar(&o.slice, "slice", 200*time.Millisecond, "how long each cell of a round takes, about")
	flags.StringVar(&lists.sizes, "sizes", "64,512,4096,65536,1048576", "message sizes in bytes")
	flags.StringVar(&lists.conns, "conns", "default", "numbers of connections at once; default 1 and those of interest for each workload")
	flags.StringVar(&lists.idle, "idle", "default", "numbers of idle connections, or none; default 1000,10000 on one host, 1000 by RDMA")
	flags.StringVar(&lists.peers, "peers", "default", "what to measure, of: "+peerKeys())
	flags.StringVar(&lists.links, "links", "", "measure ringnet alone with each of these numbers of `links` for a pair of processes, such as 1,2,4")
	flags.StringVar(&lists.workloads, "workloads", workloadKeys(), "what to measure of it")
	flags.BoolVar(&o.library, "library", true, "measure the library's own share, too")
	flags.StringVar(&o.out, "out", "", "`folder` for results.json and charts; none by default")
	flags.BoolVar(&o.check, "check", false, "fail if a figure is not met")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *listen != "" {
		return serve(*listen, *once)
	}
	o.onDevice = *rdma || *connect != ""
	if *quick {
		quickly(flags, &o, &lists.sizes, &lists.conns, &lists.idle)
	}
	if lists.links != "" {
		if *other != "" {
			return errors.New("-links compares this version with itself, and goes without -beside")
		}
		if err := lists.compareLinks(o.onDevice); err != nil {
			return err
		}
		o.library = false
	}
	if lists.peers == "default" {
		lists.peers = strings.Join(hostPeers, ",")
		if o.onDevice {
			lists.peers = strings.Join(rdmaPeers, ",")
		}
	}
	if lists.idle == "default" {
		lists.idle = "1000,10000"
		if o.onDevice {
			lists.idle = "1000"
		}
	}
	var err error
	if o.sizes, err = numbers("sizes", lists.sizes); err != nil {
		return err
	}
	if lists.conns != "default" {
		if o.conns, err = numbers("conns", lists.conns); err != nil {
			return err
		}
	}
	if lists.idle != "none" {
		if o.idle, err = numbers("idle", lists.idle); err != nil {
			return err
		}
	}
	if *other != "" && *connect != "" {
		return errors.New("-beside wants both processes on one host, without -connect")
	}
	o.peers, o.workloads = strings.Split(lists.peers, ","), strings.Split(lists.workloads, ",")
	for _, key := range o.peers {
		if _, err := findPeer(key); err != nil {
			return err
		}
	}
	if *other != "" {
		if o.peers, err = measureBeside(*other, o.peers); err != nil {
			return err
		}
	}
	for _, key := range o.workloads {
		if _, err := findWorkload(key); err != nil {
			return err
		}
	}
	if o.rounds < 1 || o.slice <= 0 {
		return errors.New("-rounds and -slice want positive values")
	}

	host := "127.0.0.1"
	switch {
	case *connect != "":
		if host, _, err = net.SplitHostPort(*connect); err != nil {
			return err
		}
	case *rdma && *address == "":
		return errors.New("-rdma wants -address, the IP address of the RDMA device's network interface")
	case *rdma:
		host = *address
	}
	if o.out != "" {
		if err := os.MkdirAll(o.out, 0o755); err != nil {
			return err
		}
	}
	server, end, err := reach(*connect)
	if err != nil {
		return err
	}
	defer end()
	b := &bench{
		options: o, server: server, host: host, device: *device,
		report: new(Report), counts: make(map[perf.Cell]int), starts: make(map[perf.Cell]perf.Sample), port: firstToolPort, show: perf.NewProgress(os.Stderr),
	}
	b.runner = perf.Runner{Slice: o.slice, Usage: b.usages, Note: b.show.Note}
	b.report.Begin()
	b.report.Rounds, b.report.Slice = o.rounds, o.slice
	if o.onDevice {
		b.report.Machine.Device = *device
	}
	err = b.run()
	b.show.End()
	if err != nil {
		return err
	}
	b.report.finish()
	b.report.print(os.Stdout)
	if o.out != "" {
		if err := b.report.write(o.out); err != nil {
			return err
		}
		fmt.Printf("\nresults.json and charts are in %s\n", o.out)
	}
	return b.verdict()
}

// lists are flags that list things.
type lists struct{ sizes, conns, idle, peers, workloads, links string }

// compareLinks has ringnet measured with several numbers of links, and many
// connections, unless flags say otherwise.
func (l *lists) compareLinks(onDevice bool) error {
	counts, err := numbers("links", l.links)
	if err != nil {
		return err
	}
	network := "shm"
	if onDevice {
		network = "rdma"
	}
	var keys []string
	for _, n := range counts {
		keys = append(keys, fmt.Sprintf("%s/%d", network, n))
	}
	l.peers, l.idle = strings.Join(keys, ","), "none"
	if l.conns == "default" {
		l.conns = "16,64,256"
	}
	if l.workloads == workloadKeys() {
		l.workloads = "work,http"
	}
	return nil
}

// firstToolPort is the port before those that programs listen on, one for each
// run.
const firstToolPort = 18600

// quickly makes a smoke test of the options that were not given.
func quickly(flags *flag.FlagSet, o *options, sizes, conns, idle *string) {
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, set := range map[string]func(){
		"rounds": func() { o.rounds = 1 },
		"slice":  func() { o.slice = 5 * time.Millisecond },
		"sizes":  func() { *sizes = "64,65536" },
		"conns":  func() { *conns = "1,2" },
		"idle":   func() { *idle = "20" },
	} {
		if !given[name] {
			set()
		}
	}
}

func numbers(name, list string) ([]int, error) {
	var out []int
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 1<<30 {
			return nil, fmt.Errorf("-%s: %q is not a number from 1 on", name, s)
		}
		out = append(out, n)
	}
	return out, nil
}

func peerKeys() string {
	var keys []string
	for _, p := range peers {
		keys = append(keys, p.key)
	}
	return strings.Join(keys, ",")
}

func workloadKeys() string {
	var keys []string
	for _, w := range workloads {
		keys = append(keys, w.Key)
	}
	return strings.Join(keys, ",")
}

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
// process of this program, which ends with the connection.
func reach(address string) (*rpc.Client, func(), error) {
	if address != "" {
		c, err := rpc.Dial("tcp", address)
		if err != nil {
			return nil, nil, err
		}
		return c, func() { c.Close() }, nil
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
// round, but by another version, which may not have it, or, if so asked, if a
// figure was not met.
func (b *bench) verdict() error {
	var errs []error
	for _, r := range b.report.Results {
		if p, err := findPeer(r.Peer); r.Median.Rounds == 0 && (err != nil || p.beside == nil) {
			errs = append(errs, fmt.Errorf("%v: %s", r.Cell, r.Error))
		}
	}
	if b.check && slices.ContainsFunc(b.report.Figures, func(f Figure) bool { return f.Verdict == notMet }) {
		errs = append(errs, errors.New("figures are not met"))
	}
	return errors.Join(errs...)
}
