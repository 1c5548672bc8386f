package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// options are the flags, and what they choose.
type options struct {
	rounds                                  int
	slice                                   time.Duration
	sizes, conns, idle, busy                []int // conns are nil for what each workload is measured with
	peers, workloads                        []string
	rdma, oneProcess, once, quick, markdown bool
	address, device, card                   string
	listen, connect, other, compare         string
	out, commit                             string

	host       string // where the server listens for peers
	usualSizes bool   // sizes are the usual ones
	busyHost   bool   // each workload with what a busy host is compared by
}

// onDevice reports whether an RDMA device is measured.
func (o *options) onDevice() bool { return o.rdma || o.connect != "" }

// isBusy reports whether there are strangers.
func (o *options) isBusy() bool {
	return slices.ContainsFunc(o.busy, func(n int) bool { return n > 0 })
}

// parse reads the flags. What is not given is as usual for what is compared.
func parse(args []string) (*options, error) {
	o := &options{busy: []int{0}}
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
	flags.StringVar(&o.listen, "listen", "", "be the server, at this TCP `address`, for a client with -connect")
	flags.StringVar(&o.connect, "connect", "", "measure against the server at this TCP `address`")
	flags.BoolVar(&o.once, "once", false, "with -listen, be the child of another program, and end with it or after the first client")
	flags.BoolVar(&o.quick, "quick", false, "a smoke test: one short round of little, whose figures mean nothing")
	flags.StringVar(&o.other, "beside", "", "measure another version beside this one, too: the `file` is a build of this program there")
	flags.IntVar(&o.rounds, "rounds", 7, "how often everything is measured")
	flags.DurationVar(&o.slice, "slice", 200*time.Millisecond, "how long each cell of a round takes, about")
	numbers("sizes", "message sizes in bytes; default "+usualSizes, 1, &o.sizes)
	numbers("conns", "numbers of connections at once; default 1 and those of interest for each workload", 1, &o.conns)
	numbers("idle", "numbers of idle connections, or none; default 1000,10000 on one host, 1000 by RDMA", 1, &o.idle)
	numbers("busy", "`numbers` of other processes that compute all the time beside it, such as 0,2,8; without -peers, -workloads, -sizes and -conns what a busy host is compared by", 0, &o.busy)
	flags.StringVar(&o.card, "card", "", "measure on the ideal card, which this `program` is that tools/idealcard makes, and TCP beside it, each cell in a process of its own")
	flags.BoolVar(&o.oneProcess, "one-process", false, "client and server are one process, where a pipe in memory can be measured, too")
	words("peers", "what to measure, of: "+peerKeys()+", and shm/N and rdma/N with N links for a pair of processes", &o.peers)
	words("workloads", "what to measure of it; default all of: "+workloadKeys(), &o.workloads)
	flags.StringVar(&o.out, "out", "", "`folder` for results.json and charts; none by default")
	flags.StringVar(&o.commit, "commit", "", "the `version` that this is, for results.json")
	flags.StringVar(&o.compare, "compare", "", "measure nothing, and say what differs between two results.json: `OLD,NEW`")
	flags.BoolVar(&o.markdown, "markdown", false, "print the tables that are for documents")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.card != "" {
		o.rdma, o.oneProcess, o.address, o.device = true, true, "127.0.0.1", "ideal0"
	}
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range o.usual() {
		if !given[name] {
			if err := flags.Set(name, value); err != nil {
				return nil, err
			}
		}
	}
	o.usualSizes = !given["sizes"] && !o.quick
	o.busyHost = o.isBusy() && o.usualSizes && !given["conns"] && !o.onDevice()
	return o, o.choose(given["peers"] || o.card != "")
}

// choose finds the peers and workloads: peers that were chosen are measured with each workload.
func (o *options) choose(chosen bool) error {
	if (o.other != "" || o.oneProcess) && o.connect != "" {
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
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, key := range o.workloads {
		if _, err := findWorkload(key); err != nil {
			return err
		}
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
			p.program = self
		}
	}
	if o.other != "" {
		return o.measureBeside(self)
	}
	return nil
}

// usualSizes are the sizes of messages by default.
const usualSizes = "64,512,4096,65536,1048576"

// usual are flags that depend on what is compared.
func (o *options) usual() map[string]string {
	d := map[string]string{"peers": hostPeers, "workloads": workloadKeys(), "sizes": usualSizes, "idle": "1000,10000"}
	if o.isBusy() {
		d["peers"], d["workloads"] = busyPeers, "ping-pong,stream,connect,http,grpc"
	}
	switch {
	case o.card != "":
		d["peers"] = cardPeers
	case o.onDevice():
		d["peers"], d["idle"] = rdmaPeers, "1000"
	case o.oneProcess:
		d["peers"], d["workloads"] = "pipe,"+busyPeers, "http,grpc"
	}
	if o.quick {
		d["rounds"], d["slice"], d["sizes"], d["conns"], d["idle"] = "1", "5ms", "64,65536", "1,2", "20"
	}
	if o.card != "" || o.oneProcess || o.isBusy() {
		d["idle"] = "none"
	}
	return d
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

func workloadKeys() string {
	var keys []string
	for _, w := range benchmarks {
		keys = append(keys, w.Key)
	}
	return strings.Join(keys, ",")
}
