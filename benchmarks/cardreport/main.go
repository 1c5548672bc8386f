package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/rpc"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	device, address string
	connect, skip   string
	out, bin, repo  string
	quick, portDown bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "card-report:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("card-report", flag.ContinueOnError)
	listen := flags.Bool("listen", false, "be the other end, for a client with -connect")
	peer := flags.String("peer", "", "be the echo server at this `address`, which the other end starts")
	flags.StringVar(&o.connect, "connect", "", "the `address` of the other end's device, where a server listens; without it both ends are on this host")
	flags.StringVar(&o.device, "device", os.Getenv("SOFTROCE_DEVICE"), "the RDMA `device`; default $SOFTROCE_DEVICE, or the first that is ACTIVE and has an address")
	flags.StringVar(&o.address, "address", os.Getenv("SOFTROCE_ADDR"), "the `IP` address of the device's network interface; default $SOFTROCE_ADDR, or its first")
	flags.BoolVar(&o.portDown, "port-down", false, "permit \"ip link set down\" and up of the device's interface for a few seconds: as root; it may lose routes and IPv6 addresses that were set by hand")
	flags.BoolVar(&o.quick, "quick", false, "a little of all, whose figures mean nothing")
	flags.StringVar(&o.skip, "skip", "", "tests to leave out, by a `pattern` as of go test")
	flags.StringVar(&o.out, "out", "bin/results-report", "`folder` of the report")
	flags.StringVar(&o.repo, "repo", ".", "`folder` of ringnet's sources, in which its tests run")
	flags.StringVar(&o.bin, "bin", "", "`folder` of the programs that make card-report builds; default that of this one")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err := o.complete(); err != nil {
		return err
	}
	switch {
	case *peer != "":
		return bePeer(*peer)
	case *listen:
		return o.serve(ctx)
	}
	return o.all(ctx)
}

// complete makes the folders absolute: programs run in others.
func (o *options) complete() error {
	if o.bin == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		o.bin = filepath.Dir(self)
	}
	for _, dir := range []*string{&o.bin, &o.out, &o.repo} {
		path, err := filepath.Abs(*dir)
		if err != nil {
			return err
		}
		*dir = path
	}
	return nil
}

// session is one run.
type session struct {
	options
	ctx     context.Context
	chosen  deviceInfo
	netdev  string // the device's network interface, if it has one
	lacking string // why there is no device
	server  *rpc.Client
	report  *document
}

func (o *options) all(ctx context.Context) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	s := &session{options: *o, ctx: ctx}
	server, err := o.reach()
	if err != nil {
		return fmt.Errorf("the other end: %w", err)
	}
	defer server.Close()
	s.server = server
	if err := s.choose(); err != nil {
		s.device, s.lacking = "", err.Error()
	}
	r := &document{Format: 1, Day: time.Now().UTC().Format(time.DateOnly), Device: "no RDMA device", Hosts: 1, scrub: newScrubber(o.connect)}
	s.report = r
	if s.device != "" {
		r.Device = s.device
	}
	if s.connect != "" {
		r.Hosts = 2
	}
	r.scrub.keep = []string{s.chosen.Firmware}
	for _, x := range []struct {
		title string
		most  time.Duration
		run   func(*part)
	}{
		{"Doctor", 2 * time.Minute, s.doctor},
		{"Host", 2 * time.Minute, s.host},
		{"Suites", time.Duration(len(suites)+1) * suiteTime, s.runSuites},
		{"Speed", 2 * speedTime, s.speed},
		{"Manners", 2 * mannersTime, s.manners},
		{"Failover", 4 * faultTime, s.failover},
	} {
		r.add(x.title, x.most, func(p *part) {
			if ctx.Err() != nil {
				p.problem("interrupted")
				return
			}
			x.run(p)
		})
		if err := r.write(o.out); err != nil { // what there is, should the rest take the host down
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "card-report: the report is %s in %s; attach it, %s and the charts to an issue\n", markdownFile, o.out, jsonFile)
	return nil
}
