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
	usualSizes bool  // sizes are the usual ones
	conns      []int // nil for what each workload is measured with
	idle       []int
	busy       []int // numbers of strangers
	busyHost   bool  // each workload with what a busy host is compared by
	peers      []string
	workloads  []string
	onDevice   bool // RDMA
	twoHosts   bool
	oneProcess bool   // which is client and server
	card       string // the program that runs others on the ideal card
	out        string
	markdown   bool
}

// invocation is what the flags say.
type invocation struct {
	options
	lists                  lists
	rdma, once, quick      bool
	address, device        string
	listen, connect, other string
	compare, commit        string
}

// parse reads the flags, once to learn what is compared, and again with what is usual then.
func parse(args []string) (o invocation, err error) {
	given, err := read(args, lists{busy: "0", rounds: 7, slice: 200 * time.Millisecond})
	if err != nil || given.listen != "" || given.compare != "" {
		return given, err
	}
	usual := given.usual()
	if o, err = read(args, usual); err != nil {
		return o, err
	}
	o.usualSizes = given.lists.sizes == "" && !o.quick
	o.busyHost = o.lists.busy != "0" && o.usualSizes && given.lists.conns == "" && !o.onDevice
	return o, o.choose(given.lists.peers != "" || usual.chosen)
}

// read reads the flags, of which some have these values by default.
func read(args []string, usual lists) (o invocation, err error) {
	flags := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	flags.BoolVar(&o.rdma, "rdma", false, "measure on this host's RDMA device")
	flags.StringVar(&o.address, "address", os.Getenv("SOFTROCE_ADDR"), "with -rdma, the `IP` address of the device's network interface; default $SOFTROCE_ADDR")
	flags.StringVar(&o.device, "device", os.Getenv("SOFTROCE_DEVICE"), "RDMA `device` for perftest; default $SOFTROCE_DEVICE, or perftest's choice")
	flags.StringVar(&o.listen, "listen", "", "be the server, at this TCP `address`, for a client with -connect")
	flags.StringVar(&o.connect, "connect", "", "measure against the server at this TCP `address`")
	flags.BoolVar(&o.once, "once", false, "with -listen, end after the first client")
	flags.BoolVar(&o.quick, "quick", false, "a smoke test: one short round of little, whose figures mean nothing")
	flags.StringVar(&o.other, "beside", "", "measure another version beside this one, too: the `file` is a build of this program there")
	flags.IntVar(&o.rounds, "rounds", usual.rounds, "how often everything is measured")
	flags.DurationVar(&o.slice, "slice", usual.slice, "how long each cell of a round takes, about")
	flags.StringVar(&o.lists.sizes, "sizes", usual.sizes, "message sizes in bytes; default "+usualSizes)
	flags.StringVar(&o.lists.conns, "conns", usual.conns, "numbers of connections at once; default 1 and those of interest for each workload")
	flags.StringVar(&o.lists.idle, "idle", usual.idle, "numbers of idle connections, or none; default 1000,10000 on one host, 1000 by RDMA")
	flags.StringVar(&o.lists.busy, "busy", usual.busy, "`numbers` of other processes that compute all the time beside it, such as 0,2,8; without -peers, -workloads, -sizes and -conns what a busy host is compared by")
	flags.StringVar(&o.card, "card", "", "measure on the ideal card, which this `program` is that tools/idealcard makes, and TCP beside it, each cell in a process of its own")
	flags.BoolVar(&o.oneProcess, "one-process", false, "client and server are one process, where a pipe in memory can be measured, too")
	flags.StringVar(&o.lists.peers, "peers", usual.peers, "what to measure, of: "+peerKeys()+", and shm/N and rdma/N with N links for a pair of processes")
	flags.StringVar(&o.lists.workloads, "workloads", usual.workloads, "what to measure of it; default all of: "+workloadKeys())
	flags.StringVar(&o.out, "out", "", "`folder` for results.json and charts; none by default")
	flags.StringVar(&o.commit, "commit", "", "the `version` that this is, for results.json")
	flags.StringVar(&o.compare, "compare", "", "measure nothing, and say what differs between two results.json: `OLD,NEW`")
	flags.BoolVar(&o.markdown, "markdown", false, "print the tables that are for documents")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.card != "" {
		o.rdma, o.oneProcess, o.address, o.device = true, true, "127.0.0.1", "ideal0"
	}
	o.twoHosts = o.connect != ""
	o.onDevice = o.rdma || o.twoHosts
	return o, nil
}

// choose makes of the lists what is measured: of peers that were chosen, with each workload.
func (o *invocation) choose(chosen bool) (err error) {
	if o.busy, err = numbers("busy", o.lists.busy, 0); err != nil {
		return err
	}
	if o.sizes, err = numbers("sizes", o.lists.sizes, 1); err != nil {
		return err
	}
	if o.lists.conns != "" {
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
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, key := range o.peers {
		p, err := findPeer(key)
		if err != nil {
			return err
		}
		if chosen && p.ours != nil {
			p.single = false
		}
		if o.card != "" {
			p.fresh = &beside{self, p}
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

// lists are flags that list things, and others that have different values by default.
type lists struct {
	sizes, conns, idle, busy, peers, workloads string

	rounds int
	slice  time.Duration
	chosen bool // the peers are those of a comparison
}

// usualSizes are the sizes of messages by default.
const usualSizes = "64,512,4096,65536,1048576"

// usual is what is measured by default, where the flags compare something.
func (o *invocation) usual() lists {
	d := lists{sizes: usualSizes, idle: "1000,10000", busy: "0", workloads: workloadKeys(), rounds: o.rounds, slice: o.slice}
	peers := hostPeers
	switch {
	case o.onDevice:
		peers, d.idle = rdmaPeers, "1000"
	case o.oneProcess || o.lists.busy != "0":
		peers = busyPeers
	}
	d.peers = strings.Join(peers, ",")
	if o.quick {
		d.rounds, d.slice, d.sizes, d.conns, d.idle = 1, 5*time.Millisecond, "64,65536", "1,2", "20"
	}
	compared := func(peers, workloads string) { d.peers, d.workloads, d.idle, d.chosen = peers, workloads, "none", true }
	if o.lists.busy != "0" {
		compared(d.peers, "ping-pong,stream,connect,http,grpc")
		d.chosen = !o.onDevice
	}
	switch {
	case o.card != "":
		compared(cardPeers, d.workloads)
	case o.oneProcess && !o.onDevice:
		compared("pipe,"+d.peers, "http,grpc")
	}
	return d
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
	for _, w := range benchmarks {
		keys = append(keys, w.Key)
	}
	return strings.Join(keys, ",")
}
