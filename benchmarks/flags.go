package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// options say what is measured, and how long.
type options struct {
	rounds     int
	slice      time.Duration
	sizes      []int
	conns      []int // nil for what each workload is measured with
	idle       []int
	busy       []int // numbers of strangers
	busyHost   bool  // each workload with what a busy host is compared by
	peers      []string
	workloads  []string
	library    bool
	onDevice   bool // RDMA
	oneProcess bool // which is client and server
	out        string
	check      bool
	markdown   bool
}

// invocation is what the flags say.
type invocation struct {
	options
	lists                  lists
	rdma, once, quick      bool
	address, device        string
	listen, connect, other string
	compare, commit, note  string
}

// parse reads the flags.
func parse(args []string) (o invocation, err error) {
	flags := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	flags.BoolVar(&o.rdma, "rdma", false, "measure on this host's RDMA device")
	flags.StringVar(&o.address, "address", os.Getenv("SOFTROCE_ADDR"), "with -rdma, the `IP` address of the device's network interface; default $SOFTROCE_ADDR")
	flags.StringVar(&o.device, "device", os.Getenv("SOFTROCE_DEVICE"), "RDMA `device` for perftest; default $SOFTROCE_DEVICE, or perftest's choice")
	flags.StringVar(&o.listen, "listen", "", "be the server, at this TCP `address`, for a client with -connect")
	flags.StringVar(&o.connect, "connect", "", "measure against the server at this TCP `address`")
	flags.BoolVar(&o.once, "once", false, "with -listen, end after the first client")
	flags.BoolVar(&o.quick, "quick", false, "a smoke test: one short round of little, whose figures mean nothing")
	flags.StringVar(&o.other, "beside", "", "measure another version beside this one, too: the `file` is a build of this program there")
	flags.IntVar(&o.rounds, "rounds", 7, "how often everything is measured")
	flags.DurationVar(&o.slice, "slice", 200*time.Millisecond, "how long each cell of a round takes, about")
	flags.StringVar(&o.lists.sizes, "sizes", "default", "message sizes in bytes; default "+usualSizes)
	flags.StringVar(&o.lists.conns, "conns", "default", "numbers of connections at once; default 1 and those of interest for each workload")
	flags.StringVar(&o.lists.idle, "idle", "default", "numbers of idle connections, or none; default 1000,10000 on one host, 1000 by RDMA")
	flags.StringVar(&o.lists.busy, "busy", "0", "`numbers` of other processes that compute all the time beside it, such as 0,2,8; without -peers, -workloads, -sizes and -conns what a busy host is compared by")
	flags.BoolVar(&o.oneProcess, "one-process", false, "client and server are one process, where a pipe in memory can be measured, too")
	flags.StringVar(&o.lists.peers, "peers", "default", "what to measure, of: "+peerKeys())
	flags.StringVar(&o.lists.links, "links", "", "measure ringnet alone with each of these numbers of `links` for a pair of processes, such as 1,2,4")
	flags.StringVar(&o.lists.workloads, "workloads", workloadKeys(), "what to measure of it")
	flags.BoolVar(&o.library, "library", true, "measure the library's own share, too")
	flags.StringVar(&o.out, "out", "", "`folder` for results.json and charts; none by default")
	flags.StringVar(&o.commit, "commit", "", "the `version` that this is, for results.json")
	flags.StringVar(&o.note, "note", "", "`what` else to know of the figures, for results.json")
	flags.StringVar(&o.compare, "compare", "", "measure nothing, and say what differs between two results.json: `OLD,NEW`")
	flags.BoolVar(&o.check, "check", false, "fail if a figure is not met")
	flags.BoolVar(&o.markdown, "markdown", false, "print the tables that are for documents")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	o.onDevice = o.rdma || o.connect != ""
	if o.quick {
		quickly(flags, &o)
	}
	if o.listen != "" || o.compare != "" {
		return o, nil
	}
	return o, o.choose()
}

// choose makes of the lists what is measured.
func (o *invocation) choose() (err error) {
	if o.busy, err = numbers("busy", o.lists.busy, 0); err != nil {
		return err
	}
	if o.oneProcess {
		o.comparePipe()
	}
	if o.lists.busy != "0" {
		o.compareBusy()
	}
	if o.lists.links != "" {
		if err := o.compareLinks(); err != nil {
			return err
		}
	}
	chosen := o.lists.peers != "default"
	o.lists.fill(o.onDevice)
	if o.sizes, err = numbers("sizes", o.lists.sizes, 1); err != nil {
		return err
	}
	if o.lists.conns != "default" {
		if o.conns, err = numbers("conns", o.lists.conns, 1); err != nil {
			return err
		}
	}
	if o.lists.idle != "none" {
		if o.idle, err = numbers("idle", o.lists.idle, 1); err != nil {
			return err
		}
	}
	if (o.other != "" || o.oneProcess) && o.connect != "" {
		return errors.New("-beside and -one-process want client and server on one host, without -connect")
	}
	o.peers, o.workloads = strings.Split(o.lists.peers, ","), strings.Split(o.lists.workloads, ",")
	for _, key := range o.peers {
		p, err := findPeer(key)
		if err != nil {
			return err
		}
		if chosen && p.ours != nil {
			p.only = nil
		}
	}
	if o.other != "" {
		if o.peers, err = measureBeside(o.other, o.peers); err != nil {
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
	return nil
}

// host is where the server listens for peers.
func (o *invocation) host() (string, error) {
	switch {
	case o.connect != "":
		host, _, err := net.SplitHostPort(o.connect)
		return host, err
	case o.rdma && o.address == "":
		return "", errors.New("-rdma wants -address, the IP address of the RDMA device's network interface")
	case o.rdma:
		return o.address, nil
	}
	return "127.0.0.1", nil
}

// lists are flags that list things.
type lists struct{ sizes, conns, idle, busy, peers, workloads, links string }

// usualSizes are the sizes of messages by default.
const usualSizes = "64,512,4096,65536,1048576"

// narrow has these workloads measured alone, unless flags say otherwise.
func (o *invocation) narrow(workloads string) {
	if o.lists.workloads == workloadKeys() {
		o.lists.workloads = workloads
	}
	o.lists.idle, o.library = "none", false
}

// comparePipe has measured what can be compared with a pipe in memory, unless flags say
// otherwise.
func (o *invocation) comparePipe() {
	if o.lists.peers == "default" {
		o.lists.peers = "pipe," + strings.Join(hostPeers, ",")
	}
	o.narrow("http,grpc")
}

// compareBusy has measured what a busy host is compared by, unless flags say otherwise.
func (o *invocation) compareBusy() {
	o.busyHost = o.lists.sizes == "default" && o.lists.conns == "default" && !o.onDevice
	if o.lists.peers == "default" && !o.onDevice {
		o.lists.peers = strings.Join(hostPeers, ",")
	}
	o.narrow("ping-pong,stream,connect,http,grpc,compute")
}

// compareLinks has ringnet measured with several numbers of links, and many
// connections, unless flags say otherwise.
func (o *invocation) compareLinks() error {
	if o.other != "" {
		return errors.New("-links compares this version with itself, and goes without -beside")
	}
	counts, err := numbers("links", o.lists.links, 1)
	if err != nil {
		return err
	}
	network := "shm"
	if o.onDevice {
		network = "rdma"
	}
	var keys []string
	for _, n := range counts {
		keys = append(keys, fmt.Sprintf("%s/%d", network, n))
	}
	o.lists.peers = strings.Join(keys, ",")
	if o.lists.conns == "default" {
		o.lists.conns = "16,64,256"
	}
	o.narrow("work,http")
	return nil
}

// fill says what is measured by default.
func (l *lists) fill(onDevice bool) {
	peers, idle := hostPeers, "1000,10000"
	if onDevice {
		peers, idle = rdmaPeers, "1000"
	}
	if l.peers == "default" {
		l.peers = strings.Join(peers, ",")
	}
	if l.idle == "default" {
		l.idle = idle
	}
	if l.sizes == "default" {
		l.sizes = usualSizes
	}
}

// quickly makes a smoke test of the options that were not given.
func quickly(flags *flag.FlagSet, o *invocation) {
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, set := range map[string]func(){
		"rounds": func() { o.rounds = 1 },
		"slice":  func() { o.slice = 5 * time.Millisecond },
		"sizes":  func() { o.lists.sizes = "64,65536" },
		"conns":  func() { o.lists.conns = "1,2" },
		"idle":   func() { o.lists.idle = "20" },
	} {
		if !given[name] {
			set()
		}
	}
}

func numbers(name, list string, least int) ([]int, error) {
	var out []int
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > 1<<30 {
			return nil, fmt.Errorf("-%s: %q is not a number from %d on", name, s, least)
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
