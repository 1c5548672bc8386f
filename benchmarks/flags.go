package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// options are the flags, and what they choose.
type options struct {
	rounds                   int
	slice                    time.Duration
	sizes, conns, idle, busy []int // conns are nil for what each workload is measured with
	peers, workloads         []string
	rdma, oneProcess         bool
	once, markdown, tail     bool
	address, device, card    string
	peerDevice               string
	listen, connect, beside  string
	out                      string

	host string // where the server listens for peers
}

// onDevice reports whether an RDMA device is measured.
func (o *options) onDevice() bool { return o.rdma || o.connect != "" }

// parse reads the flags.
func parse(args []string) (*options, error) {
	o := new(options)
	flags := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	numbers := func(name, usage string, least int, to *[]int) {
		flags.Func(name, usage, func(list string) (err error) {
			*to, err = parseNumbers(list, least)
			return err
		})
	}
	words := func(name, usage string, to *[]string) {
		flags.Func(name, usage, func(list string) error {
			*to = strings.Split(list, ",")
			return nil
		})
	}
	flags.BoolVar(&o.rdma, "rdma", false, "measure on this host's RDMA device")
	flags.StringVar(&o.address, "address", os.Getenv("SOFTROCE_ADDR"), "with -rdma, the `IP` address of the device's network interface; default $SOFTROCE_ADDR")
	flags.StringVar(&o.device, "device", os.Getenv("SOFTROCE_DEVICE"), "RDMA `device` for perftest; default $SOFTROCE_DEVICE, or perftest's choice")
	flags.StringVar(&o.peerDevice, "peer-device", "", "the same with -connect, of the server's host; default perftest's choice")
	flags.StringVar(&o.listen, "listen", "", "be the server, at this TCP `address`, for a client with -connect")
	flags.StringVar(&o.connect, "connect", "", "measure against the server at this TCP `address`")
	flags.BoolVar(&o.once, "once", false, "with -listen, be the child of another program, and end with it or after the first client")
	flags.StringVar(&o.beside, "beside", "", "measure another version beside this one, too: the `file` is a build of this program there")
	flags.BoolVar(&o.tail, "tail", false, "print one table, of how rates, p99 and p99.9 of ringnet compare with the better of the others, idle and busy")
	flags.IntVar(&o.rounds, "rounds", 0, "how often everything is measured; default 7, with -tail 9")
	flags.DurationVar(&o.slice, "slice", 0, "how long each cell of a round takes, about; default 200ms, with -tail 250ms")
	numbers("sizes", "message sizes in bytes; default 64,512,4096,65536,1048576, with -tail 1024", 1, &o.sizes)
	numbers("conns", "numbers of connections at once; default 1 and those of interest for each workload", 1, &o.conns)
	numbers("idle", "numbers of idle connections, or none, which is the default", 1, &o.idle)
	numbers("busy", "`numbers` of strangers, other processes that compute all the time beside it; default 0, with -tail 0,2,8", 0, &o.busy)
	flags.StringVar(&o.card, "card", "", "measure on the ideal card, which this `program` is that tools/idealcard makes, and TCP beside it, each cell in a process of its own")
	flags.BoolVar(&o.oneProcess, "one-process", false, "client and server are one process, where a pipe in memory can be measured, too")
	words("peers", "what to measure, of: "+peerKeys()+", and shm/N and rdma/N with N links for a pair of processes", &o.peers)
	words("workloads", "what to measure of it; default all of: "+workloadKeys(false)+", with -tail "+workloadKeys(true), &o.workloads)
	flags.StringVar(&o.out, "out", "", "`folder` for results.json and charts; none by default")
	flags.BoolVar(&o.markdown, "markdown", false, "print tables of Markdown")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return o, o.choose()
}

// choose finds the peers and workloads.
func (o *options) choose() error {
	usual := hostPeers
	switch {
	case o.card != "":
		o.rdma, o.oneProcess, o.address, o.device = true, true, "127.0.0.1", "ideal0"
		usual = cardPeers
	case o.onDevice():
		usual = rdmaPeers
	}
	if o.peers == nil {
		o.peers = strings.Split(usual, ",")
	}
	o.setDefaults()
	switch {
	case o.rounds < 0, o.slice < 0:
		return errors.New("-rounds and -slice want a number from 1 on, and a time")
	case o.tail && (o.onDevice() || o.listen != ""):
		return errors.New("-tail is of one host without its RDMA device")
	}
	if (o.beside != "" || o.oneProcess) && o.connect != "" {
		return errors.New("-beside and -one-process want client and server on one host, without -connect")
	}
	switch {
	case o.connect != "":
		o.host, _, _ = net.SplitHostPort(o.connect)
	case !o.rdma:
		o.host = "127.0.0.1"
	case o.address == "":
		return errors.New("-rdma wants -address, the IP address of the RDMA device's network interface")
	default:
		o.host = o.address
	}
	for _, key := range o.workloads {
		w, err := findWorkload(key)
		if err != nil {
			return err
		}
		if o.tail && w.tail == nil {
			return fmt.Errorf("-tail has no row of %s", key)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var ours, yardsticks bool
	for _, key := range o.peers {
		p, err := findPeer(key)
		if err != nil {
			return err
		}
		ours, yardsticks = ours || p.ours != nil, yardsticks || p.yardstick
		if o.card != "" {
			p.program = self
		}
	}
	if o.tail && !(ours && yardsticks) {
		return errors.New("-tail wants -peers of ringnet, and others to compare them with")
	}
	if o.beside != "" {
		return o.measureBeside(self)
	}
	return nil
}

// setDefaults sets what was not given of how much is measured.
func (o *options) setDefaults() {
	rounds, slice, sizes, busy := 7, 200*time.Millisecond, []int{64, 512, 4 << 10, 64 << 10, 1 << 20}, []int{0}
	if o.tail {
		rounds, slice, sizes, busy = 9, 250*time.Millisecond, []int{1 << 10}, []int{0, 2, 8}
	}
	o.rounds, o.slice = cmp.Or(o.rounds, rounds), cmp.Or(o.slice, slice)
	if o.sizes == nil {
		o.sizes = sizes
	}
	if o.busy == nil {
		o.busy = busy
	}
	if o.workloads == nil {
		o.workloads = strings.Split(workloadKeys(o.tail), ",")
	}
}

func parseNumbers(list string, least int) (numbers []int, err error) {
	if list == "none" {
		return nil, nil
	}
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < least {
			return nil, fmt.Errorf("%q is not a number from %d on", s, least)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

func peerKeys() string {
	var keys []string
	for _, p := range peers {
		keys = append(keys, p.key)
	}
	return strings.Join(keys, ",")
}

// workloadKeys are those of all workloads, or of those with a row in the table of -tail.
func workloadKeys(tail bool) string {
	var keys []string
	for _, w := range benchmarks {
		if !tail || w.tail != nil {
			keys = append(keys, w.Key)
		}
	}
	return strings.Join(keys, ",")
}
