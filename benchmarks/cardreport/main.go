package cardreport

import (
	"context"
	"flag"
	"fmt"
	"net/rpc"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/benchmarks/process"
)

// options are the flags.
type options struct {
	device, address string
	netdev          string // of the device
	connect         string
	out, bin, repo  string
	quick, portDown bool
}

// Argument is what the flags of Run follow in the program's.
const Argument = "card-report"

// Run writes a report, or is the other end, where clients also find what measures.
func Run(args []string, measures func() process.Server) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var o options
	flags := flag.NewFlagSet(Argument, flag.ContinueOnError)
	listen := flags.Bool("listen", false, "be the other end, for a client with -connect")
	peer := flags.String("peer", "", "be the echo server at this `address`, which the other end starts")
	flags.StringVar(&o.connect, "connect", "", "the `address` of the other end's device, where a server listens; without it both ends are on this host")
	flags.StringVar(&o.device, "device", os.Getenv("SOFTROCE_DEVICE"), "the RDMA `device`; default $SOFTROCE_DEVICE, or the first that is ACTIVE and has an address")
	flags.StringVar(&o.address, "address", os.Getenv("SOFTROCE_ADDR"), "the `IP` address of the device's network interface; default $SOFTROCE_ADDR, or its first")
	flags.BoolVar(&o.portDown, "port-down", false, "permit \"ip link set down\" and up of the device's interface for a few seconds: as root; it may lose routes and IPv6 addresses that were set by hand")
	flags.BoolVar(&o.quick, "quick", false, "a little of all, whose figures mean nothing")
	flags.StringVar(&o.out, "out", "bin/results-report", "`folder` of the report")
	flags.StringVar(&o.repo, "repo", ".", "`folder` of ringnet's sources, in which its tests run")
	flags.StringVar(&o.bin, "bin", filepath.Dir(self), "`folder` of the programs that make card-report builds")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.bin, err = filepath.Abs(o.bin); err != nil { // programs run in other folders
		return err
	}
	switch {
	case *peer != "":
		return bePeer(*peer)
	case *listen:
		return o.serve(measures)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return o.all(ctx)
}

// session is one run.
type session struct {
	options
	ctx    context.Context
	chosen deviceInfo
	server *rpc.Client
	peer   string // where the echo server of the other end listens
	report *document
}

// begin begins a report of a number of hosts in files whose names have the prefix. It also returns why
// there is no device for it, if there is none.
func (o *options) begin(ctx context.Context, hosts int, prefix string) (s *session, lacking error, err error) {
	r := &document{Day: time.Now().UTC().Format(time.DateOnly), Device: "no RDMA device", Hosts: hosts,
		scrub: newScrubber(o.connect), path: filepath.Join(o.out, prefix)}
	s = &session{options: *o, ctx: ctx, report: r}
	if s.chosen, lacking = s.choose(ctx); lacking == nil {
		r.Device = s.device
	}
	r.scrub.keep = o.versions(ctx)
	return s, lacking, os.MkdirAll(o.out, 0o755)
}

func (o *options) all(ctx context.Context) error {
	hosts := 1
	if o.connect != "" {
		hosts = 2
	}
	s, lacking, err := o.begin(ctx, hosts, reportPrefix)
	if err != nil {
		return err
	}
	if s.server, err = o.reach(); err != nil {
		return fmt.Errorf("the other end: %w", err)
	}
	defer s.server.Close()
	err = s.run(lacking, []section{
		{"Doctor", false, s.doctor},
		{"Host", false, s.host},
		{"Suites", true, s.runSuites},
		{"Speed", true, s.speed},
		{"Manners", true, s.manners},
		{"Failover", true, s.failover},
		{"Kernel", false, openKernelLog().tell},
	})
	if err == nil && o.connect != "" {
		err = s.addOtherHalf()
	}
	if err != nil {
		return err
	}
	return s.report.show(os.Stdout)
}

// section is a part to be made.
type section struct {
	title       string
	wantsDevice bool
	run         func(*Part)
}

// run makes parts, those that want a device unless it is lacking, and writes the report after each:
// the next may take the host down.
func (s *session) run(lacking error, sections []section) error {
	for _, x := range sections {
		s.report.add(x.title, func(p *Part) {
			switch {
			case s.ctx.Err() != nil:
				p.problem("interrupted")
			case x.wantsDevice && lacking != nil:
				p.problem("%v", lacking)
			default:
				x.run(p)
			}
		})
		if err := s.report.write(); err != nil {
			return err
		}
	}
	return nil
}
