package main

import (
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
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/proxy"
)

type proxyCommand struct {
	Forwarding forwardingFlags `embed:""`

	File    string        `type:"existingfile" placeholder:"FILE" help:"Read forwardings from a file: on each line the flags of one, --listen to --dial-timeout. # begins a comment."`
	Drain   time.Duration `default:"30s" help:"On SIGTERM, wait so long for connections to end before they are cut off (${default})."`
	Metrics hostPort      `placeholder:"HOST:PORT" help:"Serve metrics for Prometheus at http://HOST:PORT/metrics."`
	Verbose bool          `short:"v" help:"Log each connection."`
}

// forwardingFlags are the flags of a forwarding, on the command line or on a line of a
// file.
type forwardingFlags struct {
	Listen         endpoint.Endpoint `placeholder:"URL" help:"Accept connections here: NETWORK://HOST:PORT or unix:///PATH. Networks: auto, auto4, auto6, shm, rdma, rdma4, rdma6, tcp, tcp4, tcp6."`
	To             endpoint.Endpoint `placeholder:"URL" help:"Forward them to here."`
	Require        []string          `enum:"shm,rdma" placeholder:"NETWORK" help:"Refuse connections of auto that none of these carries: shm, rdma."`
	TrustUser      []uint32          `placeholder:"UID" help:"Connect by shm to processes of these users, besides one's own."`
	MaxConnections int               `placeholder:"N" help:"Refuse more connections at once than this. Default: no bound but that of open files."`
	Idle           time.Duration     `placeholder:"TIME" help:"Close connections on which nothing moves for so long, for example 10m. Default: never."`
	DialTimeout    time.Duration     `default:"10s" help:"Give up to connect after this time (${default})."`
}

func (f forwardingFlags) forwarding() (proxy.Forwarding, error) {
	switch {
	case f.Listen == endpoint.Endpoint{}:
		return proxy.Forwarding{}, errors.New("missing flag --listen=URL: where connections are accepted, for example --listen auto://:6380")
	case f.To == endpoint.Endpoint{}:
		return proxy.Forwarding{}, errors.New("missing flag --to=URL: where connections are forwarded to, for example --to tcp://127.0.0.1:6379")
	case f.MaxConnections < 0:
		return proxy.Forwarding{}, fmt.Errorf("--max-connections=%d: want a positive number, or 0 for no bound", f.MaxConnections)
	case f.Idle < 0 || f.DialTimeout < 0:
		return proxy.Forwarding{}, errors.New("--idle and --dial-timeout want positive times, or 0 for no bound")
	case len(f.Require) > 0 && !f.Listen.IsAuto() && !f.To.IsAuto():
		return proxy.Forwarding{}, fmt.Errorf("--require is about auto, which neither %v nor %v is", f.Listen, f.To)
	}
	return proxy.Forwarding{
		Listen:         f.Listen,
		To:             f.To,
		Options:        endpoint.Options{Require: f.Require, TrustUser: f.TrustUser},
		MaxConnections: f.MaxConnections,
		Idle:           f.Idle,
		DialTimeout:    f.DialTimeout,
	}, nil
}

// forwardings returns the forwardings of the command line or of the file.
func (c *proxyCommand) forwardings() ([]proxy.Forwarding, error) {
	if c.File == "" {
		f, err := c.Forwarding.forwarding()
		return []proxy.Forwarding{f}, err
	}
	if c.Forwarding.Listen != (endpoint.Endpoint{}) || c.Forwarding.To != (endpoint.Endpoint{}) {
		return nil, errors.New("--listen and --to cannot be used together with --file: write them on a line of the file")
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
		all = append(all, f)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no forwardings: want lines like --listen auto://:6380 --to tcp://127.0.0.1:6379", file)
	}
	return all, nil
}

func parseForwarding(args []string) (proxy.Forwarding, error) {
	var line struct {
		Forwarding forwardingFlags `embed:""`
	}
	parser, err := kong.New(&line, kong.NoDefaultHelp())
	if err != nil {
		return proxy.Forwarding{}, err
	}
	if _, err := parser.Parse(args); err != nil {
		return proxy.Forwarding{}, err
	}
	return line.Forwarding.forwarding()
}

// Run forwards connections until the context ends, drains, and returns.
func (c *proxyCommand) Run(ctx context.Context, s *streams) error {
	forwardings, err := c.forwardings()
	if err != nil {
		return misuseError{err}
	}
	shareProcessors()
	log := s.logger(c.Verbose)
	proxies, err := listenAll(ctx, forwardings, log)
	if err != nil {
		return err
	}
	if c.Metrics != "" {
		stop, err := serveMetrics(string(c.Metrics), proxies, log)
		if err != nil {
			closeAll(proxies)
			return err
		}
		defer stop()
	}
	notify(daemon.SdNotifyReady, log)
	err = waitAny(ctx, proxies)
	notify(daemon.SdNotifyStopping, log)
	return errors.Join(err, c.drain(proxies, log))
}

// shareProcessors leaves half of the processors to the programs for which the proxies
// work, unless GOMAXPROCS is set. With more, the runtime would wake threads that look for
// work in vain, on processors that these programs need.
func shareProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0)/2, 1))
	}
}

func listenAll(ctx context.Context, forwardings []proxy.Forwarding, log *slog.Logger) ([]*proxy.Proxy, error) {
	var proxies []*proxy.Proxy
	for _, f := range forwardings {
		p, err := proxy.Listen(ctx, f, log)
		if err != nil {
			closeAll(proxies)
			return nil, fmt.Errorf("--listen %v: %w", f.Listen, err)
		}
		proxies = append(proxies, p)
		log.Info("forwards", "listen", f.Listen.String(), "to", f.To.String(), "address", p.Addr().String())
	}
	return proxies, nil
}

func closeAll(proxies []*proxy.Proxy) {
	for _, p := range proxies {
		p.Close()
	}
}

// waitAny returns when the context ends, or with the error of a proxy that cannot
// accept any more.
func waitAny(ctx context.Context, proxies []*proxy.Proxy) error {
	failed := make(chan error, len(proxies))
	for _, p := range proxies {
		go func() { failed <- p.Wait() }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// drain drains all proxies. After c.Drain, or another signal, it cuts off the connections
// that are left.
func (c *proxyCommand) drain(proxies []*proxy.Proxy, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.Drain)
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	log.Info("stops: waits for connections to end", "at most", c.Drain)
	errs := make([]error, len(proxies))
	var drained sync.WaitGroup
	for i, p := range proxies {
		drained.Go(func() { errs[i] = p.Drain(ctx) })
	}
	drained.Wait()
	return errors.Join(errs...)
}

// notify tells systemd the state, if systemd has started this process.
func notify(state string, log *slog.Logger) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("cannot tell systemd", "state", state, "error", err)
	}
}

// serveMetrics serves metrics until the function that it returns is called.
func serveMetrics(address string, proxies []*proxy.Proxy, log *slog.Logger) (func(), error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--metrics %s: %w", address, err)
	}
	log.Info("serves metrics", "url", fmt.Sprintf("http://%v/metrics", l.Addr()))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metricsHandler(proxies))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	return func() { _ = server.Close() }, nil
}
