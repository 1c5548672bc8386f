package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/proxy"
)

// proxies are those of a process: one for each forwarding, and those whose forwarding the
// file no longer has, until their connections have ended.
type proxies struct {
	log              *slog.Logger
	drain, drainIdle time.Duration
	failed           chan error // has room for one: why a proxy cannot accept any more

	mu       sync.Mutex // guards what follows
	running  []*proxy.Proxy
	leaving  []*proxy.Proxy
	stopping bool // drainAll has begun
}

// listen begins to forward. Those that fail, which the error names, stop no others.
func (ps *proxies) listen(ctx context.Context, forwardings []proxy.Forwarding) error {
	var errs []error
	for _, f := range forwardings {
		p, err := proxy.Listen(ctx, f, ps.log, ps.fail)
		if err != nil {
			errs = append(errs, fmt.Errorf("--listen %v: %w", f.Listen, err))
			continue
		}
		ps.mu.Lock()
		ps.running = append(ps.running, p)
		ps.mu.Unlock()
		ps.log.Info("forwards", "listen", f.Listen.String(), "to", f.To.String(), "address", p.Addr().String())
	}
	return errors.Join(errs...)
}

// fail keeps the first error.
func (ps *proxies) fail(err error) {
	select {
	case ps.failed <- err:
	default:
	}
}

// all returns the proxies that accept connections.
func (ps *proxies) all() []*proxy.Proxy {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return slices.Clone(ps.running)
}

// health is for those who ask whether to send clients here: they are not to once the proxies stop.
func (ps *proxies) health(w http.ResponseWriter, _ *http.Request) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.stopping {
		http.Error(w, "stops", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintf(w, "forwards %d\n", len(ps.running))
}

// close cuts everything off.
func (ps *proxies) close() {
	var closed sync.WaitGroup
	for _, p := range ps.all() {
		closed.Go(p.Close)
	}
	closed.Wait()
}

// change makes the forwardings those of a file that was read again. A proxy whose forwarding is
// still there goes on as it was; the others are drained, while new ones begin.
func (ps *proxies) change(ctx context.Context, forwardings []proxy.Forwarding) error {
	ps.mu.Lock()
	var kept, left []*proxy.Proxy
	for _, p := range ps.running {
		i := slices.IndexFunc(forwardings, func(f proxy.Forwarding) bool { return reflect.DeepEqual(f, p.Forwarding()) })
		if i < 0 {
			left = append(left, p)
			continue
		}
		kept = append(kept, p)
		forwardings = slices.Delete(forwardings, i, i+1)
	}
	ps.running, ps.leaving = kept, append(ps.leaving, left...)
	ps.mu.Unlock()
	for _, p := range left {
		go ps.leave(p)
	}
	for _, p := range left {
		p.Wait() // its address may be that of a new one
	}
	return ps.listen(ctx, forwardings)
}

// leave drains a proxy whose forwarding has gone.
func (ps *proxies) leave(p *proxy.Proxy) {
	ctx, cancel := context.WithTimeout(context.Background(), ps.drain)
	defer cancel()
	if err := p.Drain(ctx, ps.drainIdle); err != nil {
		ps.log.Warn("ended a forwarding", "error", err)
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.leaving = slices.DeleteFunc(ps.leaving, func(q *proxy.Proxy) bool { return q == p })
}

// drainAll drains all proxies. After the time of --drain, or another signal, it cuts off the
// connections that are left.
func (ps *proxies) drainAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), ps.drain)
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	ps.mu.Lock()
	ps.stopping = true
	all := slices.Concat(ps.running, ps.leaving)
	ps.mu.Unlock()
	ps.log.Info("stops: waits for connections to end", "at most", ps.drain)
	errs := make([]error, len(all))
	var drained sync.WaitGroup
	for i, p := range all {
		drained.Go(func() { errs[i] = p.Drain(ctx, ps.drainIdle) })
	}
	drained.Wait()
	return errors.Join(errs...)
}
