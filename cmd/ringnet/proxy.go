package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/net/netutil"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/proxy"
)

type proxyCommand struct {
	Forwarding proxy.Forwarding `embed:""`

	File      string        `type:"existingfile" placeholder:"FILE" help:"Read forwardings from a file: on each line the flags of one, --listen to --dial-timeout. # begins a comment. SIGHUP has it read again."`
	Drain     time.Duration `default:"30s" help:"On SIGTERM, wait so long for connections to end before they are reset (${default})."`
	DrainIdle time.Duration `placeholder:"TIME" help:"On SIGTERM, reset connections on which nothing moves for so long, for example 2s. Default: wait for --drain."`
	Polling   pollingFlags  `embed:""`
	Metrics   hostPort      `placeholder:"HOST:PORT" help:"Serve metrics for Prometheus at http://HOST:PORT/metrics, and /healthz, which is 503 once the proxy stops."`
	Verbose   bool          `short:"v" help:"Log each connection."`
}

// forwardings returns the forwardings of the command line or of the file.
func (c *proxyCommand) forwardings() ([]proxy.Forwarding, error) {
	if c.File == "" {
		return []proxy.Forwarding{c.Forwarding}, c.Forwarding.Check()
	}
	if err := isRegular(c.File); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(c.File)
	if err != nil {
		return nil, err
	}
	return parseForwardings(c.File, string(text))
}

func parseForwardings(file, text string) ([]proxy.Forwarding, error) {
	var all []proxy.Forwarding
	number := 0
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		f, err := parseForwarding(strings.Fields(line))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, number, err)
		}
		if err := besides(f, all); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, number, err)
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no forwardings: want lines like --listen auto://:6380 --to tcp://127.0.0.1:6379", file)
	}
	return all, nil
}

// besides returns why a forwarding cannot be one besides others.
func besides(f proxy.Forwarding, others []proxy.Forwarding) error {
	for _, other := range others {
		switch {
		case other.Listen != f.Listen:
		case !strings.HasSuffix(f.Listen.Address, ":0"):
			return fmt.Errorf("another line listens at %v", f.Listen)
		case other.To == f.To: // they would have the same metrics
			return fmt.Errorf("another line forwards from %v to %v", f.Listen, f.To)
		}
	}
	return nil
}

func parseForwarding(args []string) (proxy.Forwarding, error) {
	var f proxy.Forwarding
	parser, err := kong.New(&f, times, kong.NoDefaultHelp())
	if err != nil {
		return f, err
	}
	parsed, err := parser.Parse(args)
	if err == nil {
		err = givenTwice(parsed)
	}
	return f, cmp.Or(err, f.Check())
}

// Run forwards connections until the context ends, drains, and returns.
func (c *proxyCommand) Run(ctx context.Context, s *streams, k *kong.Context) error {
	if c.File != "" && given(k, "listen", "to", "max-connections", "idle", "require", "trust-user", "dial-timeout") {
		return misuseError{errors.New("--listen to --dial-timeout are for one forwarding, and --file has its own on each line")}
	}
	forwardings, err := c.forwardings()
	if err != nil {
		return misuseError{err}
	}
	again := make(chan os.Signal, 1)
	if c.File != "" {
		signal.Notify(again, syscall.SIGHUP)
		defer signal.Stop(again)
	}
	shareProcessors()
	ps := &proxies{log: s.logger(c.Verbose), drain: c.Drain, drainIdle: c.DrainIdle, failed: make(chan error, 1)}
	defer ps.close()
	if err := ps.listen(ctx, forwardings); err != nil {
		return err
	}
	if c.Metrics != "" {
		stop, err := serveMetrics(string(c.Metrics), ps)
		if err != nil {
			return err
		}
		defer stop()
	}
	notify(daemon.SdNotifyReady, ps.log)
	err = c.wait(ctx, ps, again)
	notify(daemon.SdNotifyStopping, ps.log)
	return errors.Join(err, ps.drainAll())
}

// wait returns when the context ends, or with the error of a proxy that cannot accept any
// more. Meanwhile it reads the file again when told so.
func (c *proxyCommand) wait(ctx context.Context, ps *proxies, again <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ps.failed:
			return err
		case <-again:
		}
		forwardings, err := c.forwardings()
		if err == nil {
			err = ps.change(ctx, forwardings)
		}
		if err != nil {
			ps.log.Error("cannot do all that the file says", "error", err)
		} else {
			ps.log.Info("has read the file again", "forwardings", len(ps.all()))
		}
	}
}

// shareProcessors leaves half of the processors to the programs for which the proxies
// work, unless GOMAXPROCS is set. With more, the runtime would wake threads that look for
// work in vain, on processors that these programs need.
func shareProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0)/2, 1))
	}
}

// notify tells systemd the state, if systemd has started this process.
func notify(state string, log *slog.Logger) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("cannot tell systemd", "state", state, "error", err)
	}
}

// serveMetrics serves metrics, and whether the proxies stop, until the function that it returns is called.
func serveMetrics(address string, ps *proxies) (func(), error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--metrics %s: %w", address, err)
	}
	ps.log.Info("serves metrics", "url", fmt.Sprintf("http://%v/metrics", l.Addr()))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metricsHandler(ps))
	mux.HandleFunc("GET /healthz", ps.health)
	server := newMetricsServer(mux)
	go func() { _ = server.Serve(netutil.LimitListener(l, metricsConnections)) }()
	return func() { _ = server.Close() }, nil
}

// metricsConnections is how many connections there may be at once for metrics; others
// wait. The rest of the descriptors is for what is forwarded.
const metricsConnections = 64

// newMetricsServer returns a server that gives its clients limited time.
func newMetricsServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadTimeout: 10 * time.Second, ReadHeaderTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute}
}

// isRegular returns why a file is not read: another might have no end, or never begin.
func isRegular(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	return err
}
