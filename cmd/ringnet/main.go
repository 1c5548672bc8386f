package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/logs"
	"github.com/ringnet/ringnet/internal/wire"
)

// command is the command line.
type command struct {
	JSON    bool             `name:"json" help:"Write JSON: what a subcommand finds, and the log of those that serve."`
	Version kong.VersionFlag `help:"Tell the versions of the command and of the wire protocol."`

	Completion completionCommand `cmd:"" help:"Print what bash, zsh or fish reads to complete subcommands and flags: source <(ringnet completion bash)."`
	Doctor     doctorCommand     `cmd:"" help:"Find out why RDMA or shared memory would not be used, and what mends it."`
	Info       infoCommand       `cmd:"" help:"Tell what this host has for ringnet: devices, addresses, limits."`
	Kill       killCommand       `cmd:"" help:"End one connection of a process of this host, with ECONNABORTED."`
	Perf       perfCommand       `cmd:"" help:"Measure set-up, latency, rate and processor time over each network, beside TCP."`
	Proxy      proxyCommand      `cmd:"" help:"Forward connections from one network to another."`
	Ss         ssCommand         `cmd:"" name:"ss" help:"Show the connections of this host's processes over shm, rdma and auto, as ss shows those over TCP."`
	Top        topCommand        `cmd:"" help:"Show which connections carry most, once a second. q, Escape or Ctrl-C ends it."`
}

// streams are where a subcommand writes.
type streams struct {
	out, err io.Writer // out is an endpoint.Shown
	terminal io.Writer // out as it is
	json     bool
	log      *logs.Writer // to err; nil: nothing is logged
}

// Exit statuses.
const (
	failed = 1
	misuse = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run runs the command and returns its exit status.
func run(args []string, out, errs io.Writer) (status int) {
	var c command
	exited := false
	parser, err := kong.New(&c,
		kong.Name("ringnet"),
		kong.Description("Connections over RDMA and shared memory, for users and operators of package ringnet."),
		kong.Writers(out, errs),
		kong.Exit(func(s int) { exited, status = true, s }),
		kong.Vars{"version": versions()},
		times,
	)
	if err != nil {
		panic(err) // the declaration above is wrong
	}
	if len(args) > 0 && args[0] == "help" {
		args = append(args[1:], "--help")
	}
	k, err := parser.Parse(args)
	if exited { // by --help or --version
		return status
	}
	if err == nil {
		err = givenTwice(k)
	}
	if err != nil {
		complain(errs, fmt.Errorf("%w: see ringnet --help", err))
		return misuse
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	k.BindTo(ctx, (*context.Context)(nil))
	s := &streams{out: endpoint.Shown{Writer: out, JSON: c.JSON}, terminal: out, err: errs, json: c.JSON}
	err = k.Run(s)
	if s.log != nil {
		errs = s.log // behind what was logged
		defer s.log.Close()
	}
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(misuseError)):
		complain(errs, err)
		return misuse
	default:
		complain(errs, err)
		return failed
	}
}

// complain writes an error, which may be several in several lines, and may name what a file or a
// peer has said.
func complain(w io.Writer, err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(w, "ringnet:", endpoint.Printable(line))
	}
}

// givenTwice returns an error if a flag that has one value was given two, of which the
// first would be lost.
func givenTwice(k *kong.Context) error {
	given := make(map[*kong.Flag]bool)
	for _, p := range k.Path {
		if p.Flag == nil || p.Flag.IsCumulative() {
			continue
		}
		if given[p.Flag] {
			return fmt.Errorf("--%s is given twice", p.Flag.Name)
		}
		given[p.Flag] = true
	}
	return nil
}

// given reports whether the command line has one of these flags.
func given(k *kong.Context, flags ...string) bool {
	return slices.ContainsFunc(k.Path, func(p *kong.Path) bool { return p.Flag != nil && slices.Contains(flags, p.Flag.Name) })
}

// twice reports whether a list has a value more than once.
func twice[T cmp.Ordered](list []T) bool {
	return len(slices.Compact(slices.Sorted(slices.Values(list)))) < len(list)
}

// versions names the versions of the command, of the protocol, and of Go.
func versions() string {
	command := "of unknown version"
	if b, ok := debug.ReadBuildInfo(); ok {
		command = b.Main.Version
	}
	return fmt.Sprintf("ringnet %s, wire protocol %d, %s", command, wire.Version, runtime.Version())
}

// misuseError is an error of the command line: the exit status is misuse.
type misuseError struct{ error }

// hostPort is an address on the command line.
type hostPort string

// UnmarshalText returns an error unless text is an address.
func (a *hostPort) UnmarshalText(text []byte) error {
	if err := endpoint.CheckHostPort(string(text)); err != nil {
		return fmt.Errorf("%q: want HOST:PORT: %w", text, err)
	}
	*a = hostPort(text)
	return nil
}

// times has flags of times be read: a number without a unit is of seconds.
var times = kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("time", &text); err != nil {
		return err
	}
	unit := ""
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		unit = "s"
	}
	d, err := time.ParseDuration(text + unit)
	if err != nil {
		return fmt.Errorf("%q: want a time, such as 2s, 100ms or 5m", text)
	}
	target.SetInt(int64(d))
	return nil
}))

// logger returns a log on the error stream, in JSON with --json. It is called once.
func (s *streams) logger(verbose bool) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	if verbose {
		options.Level = slog.LevelDebug
	}
	to := func(w io.Writer) *slog.Logger {
		if s.json {
			return slog.New(slog.NewJSONHandler(endpoint.Shown{Writer: w, JSON: true}, options))
		}
		return slog.New(slog.NewTextHandler(w, options))
	}
	s.log = logs.NewWriter(s.err, func(lines int) { to(s.err).Warn("lost lines that nobody has read", "lines", lines) })
	return to(s.log)
}

// serveAuto listens on auto, logs where, and calls serve with each connection, in a goroutine,
// after which the connection is closed. It returns nil when ctx ends, or the error of the listener.
func serveAuto(ctx context.Context, address hostPort, log *slog.Logger, message string, serve func(net.Conn)) error {
	l, err := endpoint.Endpoint{Network: "auto", Address: string(address)}.Listen(ctx, endpoint.Options{})
	if err != nil {
		return err
	}
	log.Info(message, "address", l.Addr().String())
	context.AfterFunc(ctx, func() { l.Close() })
	err = endpoint.AcceptAll(l, ctx.Done(), logs.Limit(log), func(conn net.Conn) {
		go func() {
			defer conn.Close()
			serve(conn)
		}()
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}
