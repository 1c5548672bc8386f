// Package proxy forwards connections from one network to another, so that programs
// that cannot be changed use ringnet.
//
// A Proxy accepts connections and dials one for each (proxy.go). The two have two halves,
// each of which moves bytes one way (connection.go), through a buffer that it takes only
// when there is something to read (buffer.go; socket_linux.go for the kernel's sockets).
// A Proxy counts what it does (counters.go).
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/logs"
)

// Forwarding says what goes where, in flags of the command line or of a line of a file.
type Forwarding struct {
	Listen         endpoint.Endpoint `placeholder:"URL" help:"Accept connections here: NETWORK://HOST:PORT or unix:///PATH. Networks: auto, auto4, auto6, shm, rdma, rdma4, rdma6, tcp, tcp4, tcp6."`
	To             endpoint.Endpoint `placeholder:"URL" help:"Forward them to here."`
	MaxConnections int               `placeholder:"N" help:"Refuse more connections at once than this. Default: no bound but that of open files."`
	Idle           time.Duration     `placeholder:"TIME" help:"Reset connections on which nothing moves for so long, for example 10m. Default: never."`
	Options        endpoint.Options  `embed:""` // for both
}

// Check returns why a forwarding cannot be, or nil.
func (f Forwarding) Check() error {
	switch {
	case f.Listen == endpoint.Endpoint{}:
		return errors.New("missing flag --listen=URL: where connections are accepted, for example --listen auto://:6380")
	case f.To == endpoint.Endpoint{}:
		return errors.New("missing flag --to=URL: where connections are forwarded to, for example --to tcp://127.0.0.1:6379")
	case f.MaxConnections < 0:
		return fmt.Errorf("--max-connections=%d: want a positive number, or 0 for no bound", f.MaxConnections)
	case f.Idle < 0 || f.Options.DialTimeout < 0:
		return errors.New("--idle and --dial-timeout want positive times, or 0 for no bound")
	case len(f.Options.Require) > 0 && !f.Listen.IsAuto() && !f.To.IsAuto():
		return fmt.Errorf("--require is about auto, which neither %v nor %v is", f.Listen, f.To)
	}
	return nil
}

// Proxy forwards connections.
type Proxy struct {
	forwarding Forwarding
	log        *slog.Logger
	listener   endpoint.Listener
	dial       func(context.Context) (endpoint.Conn, []ringnet.Reason, error)
	dialing    context.Context // ends when the proxy is closed
	closed     context.CancelFunc
	counters   *counters
	accepting  chan struct{} // closed when no more connections are accepted
	closing    chan struct{} // has room for maxClosing closes that peers may make long
	endTime    time.Duration // the constant, but for tests
	close      sync.Once

	mu          sync.Mutex // guards what follows
	count       int        // of connections, those that are being dialed included
	connections map[*connection]struct{}
	draining    bool
	drainIdle   time.Duration  // as Forwarding.Idle, while draining
	full        bool           // the last connection was one too many
	forwarded   sync.WaitGroup // connections
}

// Listen listens at f.Listen and forwards the connections that it accepts. It calls failed if it cannot
// accept any more.
func Listen(ctx context.Context, f Forwarding, log *slog.Logger, failed func(error)) (*Proxy, error) {
	l, err := f.Listen.Listen(ctx, f.Options)
	if err != nil {
		return nil, err
	}
	p := newProxy(f, l, log)
	go p.serve(failed)
	go p.sweep()
	return p, nil
}

func newProxy(f Forwarding, l endpoint.Listener, log *slog.Logger) *Proxy {
	p := &Proxy{
		forwarding:  f,
		log:         logs.Limit(log).With("listen", f.Listen.String(), "to", f.To.String()),
		listener:    l,
		dial:        f.To.Dialer(f.Options),
		accepting:   make(chan struct{}),
		closing:     make(chan struct{}, maxClosing),
		endTime:     endTime,
		connections: make(map[*connection]struct{}),
	}
	p.counters = newCounters(f, p.now)
	p.dialing, p.closed = context.WithCancel(context.Background())
	return p
}

// Forwarding is what Listen was given.
func (p *Proxy) Forwarding() Forwarding { return p.forwarding }

// Addr is where p listens.
func (p *Proxy) Addr() net.Addr { return p.listener.Addr() }

// Wait returns when p accepts no more connections.
func (p *Proxy) Wait() { <-p.accepting }

// serve accepts connections until the listener fails, or until the deadline that Drain
// sets for it.
func (p *Proxy) serve(failed func(error)) {
	defer close(p.accepting)
	err := endpoint.AcceptAll(p.listener, p.dialing.Done(), p.log, p.accept)
	p.within(func() { _ = p.listener.Close() }) // and, with it, what is queued at connections there
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.draining {
		failed(fmt.Errorf("%v: %w", p.forwarding.Listen, err))
	}
}

// accept forwards a connection, or refuses it.
func (p *Proxy) accept(c net.Conn) {
	client, err := p.forwarding.Options.Carried(c)
	if err != nil {
		p.counters.end(NotRequired)
		p.log.Warn("refused a connection", "error", err)
		return
	}
	p.mu.Lock()
	most := p.forwarding.MaxConnections
	wasFull := p.full
	p.full = most > 0 && p.count >= most
	full := p.full
	if !full {
		p.count++
		p.forwarded.Add(1)
	}
	p.mu.Unlock()
	if !full {
		p.counters.accepted.WithLabelValues(endpoint.NetworkOf(client)).Inc()
		go p.forward(client)
		return
	}
	p.counters.end(TooMany)
	newEnd(client, p.closing).reset()
	if !wasFull {
		p.log.Warn("refuses connections until others end", "max-connections", most)
	}
}

// forward dials for a client, and moves bytes until both have ended.
func (p *Proxy) forward(accepted endpoint.Conn) {
	defer p.forwarded.Done()
	client := newEnd(accepted, p.closing)
	from := client.RemoteAddr().String()
	server, passedOver, err := p.dial(p.dialing)
	if err != nil {
		client.reset()
		client.closes.Wait()
		p.ended(nil, Unreachable)
		p.log.Warn("cannot connect", "client", from, "error", err)
		return
	}
	c := newConnection(client, newEnd(server, p.closing), p.counters)
	p.began(c, passedOver)
	p.log.Debug("began", "client", from, "accepted over", endpoint.NetworkOf(accepted), "dialed over", endpoint.NetworkOf(server), "passed over", misses(passedOver))
	err = c.run()
	outcome := c.end(err)
	p.ended(c, outcome)
	args := []any{"client", from, "outcome", outcome, "requested", c.requests.moved.Load(), "replied", c.replies.moved.Load()}
	if err != nil {
		args = append(args, "error", err)
	}
	p.log.Debug("ended", args...)
}

// misses names networks with the codes of the reasons, for the log.
func misses(passedOver []ringnet.Reason) []string {
	var all []string
	for _, r := range passedOver {
		all = append(all, r.Network+": "+string(r.Code))
	}
	return all
}

// began counts a connection for which the proxy has dialed. If the proxy is closed
// already, it cuts the connection.
func (p *Proxy) began(c *connection, passedOver []ringnet.Reason) {
	p.counters.dialed.WithLabelValues(endpoint.NetworkOf(c.server.Conn)).Inc()
	for _, r := range passedOver {
		p.counters.passedOver.WithLabelValues(r.Network, string(r.Code)).Inc()
	}
	p.mu.Lock()
	p.connections[c] = struct{}{}
	p.mu.Unlock()
	if p.dialing.Err() != nil {
		c.stop(Cut)
	}
}

// ended counts a connection that has ended. c is nil if dialing has failed.
func (p *Proxy) ended(c *connection, why Outcome) {
	p.counters.end(why)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count--
	delete(p.connections, c)
}

// now is how many connections there are.
func (p *Proxy) now() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// all returns the connections. Nobody asks or stops one with p.mu held: its peers may make that long.
func (p *Proxy) all() []*connection {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.connections))
}

// idle is for how long nothing may move on a connection, or 0, and why it is stopped then.
func (p *Proxy) idle() (limit time.Duration, why Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit, why = p.forwarding.Idle, Idled
	if p.draining && p.drainIdle > 0 && (limit == 0 || p.drainIdle < limit) {
		limit, why = p.drainIdle, Drained
	}
	return limit, why
}

// sweepTime is how long sweep waits between two looks at most.
const sweepTime = time.Second

// sweep stops connections that are idle, and those that have lost an end and do not notice
// it, until p is closed.
func (p *Proxy) sweep() {
	every := sweepTime
	if idle := p.forwarding.Idle; idle > 0 {
		every = min(max(idle/8, time.Millisecond), every)
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-p.dialing.Done():
			return
		}
		now := time.Now()
		limit, why := p.idle()
		for _, c := range p.all() {
			switch err := c.lostBy(); {
			case err != nil:
				c.stop(lossBy(err))
			case limit > 0 && c.quiet(now) >= limit:
				c.stop(why)
			}
		}
	}
}

// backlogTime is how long Drain goes on to accept, for connections that the kernel has
// already made.
const backlogTime = 50 * time.Millisecond

// Drain accepts no more connections, and returns when all have ended. It does not know
// where a request or a reply ends, and so ends none by itself: it resets those on which
// nothing has moved for idle, unless that is 0, and, when ctx ends, all that are left. Then
// the error says how many they were.
func (p *Proxy) Drain(ctx context.Context, idle time.Duration) error {
	p.mu.Lock()
	p.draining, p.drainIdle = true, idle
	p.mu.Unlock()
	_ = p.listener.SetDeadline(time.Now().Add(backlogTime))
	p.Wait()
	ended := make(chan struct{})
	go func() {
		p.forwarded.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	left := p.now()
	p.Close()
	if left == 0 {
		return nil
	}
	return fmt.Errorf("%v: %d connections were cut off that had not ended in time", p.forwarding.Listen, left)
}

// endTime is how long Close waits for what it has ended, and before that for the listener: peers may make both
// long.
const endTime = 4 * time.Second

// Close accepts no more connections and cuts off those that there are. It returns when
// they have ended, or after endTime: then the log says how many have not.
func (p *Proxy) Close() {
	p.close.Do(func() {
		p.mu.Lock()
		p.draining = true
		p.mu.Unlock()
		p.closed()
		_ = p.listener.SetDeadline(time.Unix(1, 0))
		p.Wait()
		for _, c := range p.all() {
			c.stop(Cut)
		}
		if !p.within(p.forwarded.Wait) {
			p.log.Warn("does not wait any longer for connections that were cut off", "connections", p.now())
		}
	})
}

// within calls f, and reports whether it has returned within endTime.
func (p *Proxy) within(f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-time.After(p.endTime):
		return false
	}
}
