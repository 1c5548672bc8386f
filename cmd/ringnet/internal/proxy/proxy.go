// Package proxy forwards connections from one network to another: what programs
// that cannot be changed need to profit from ringnet.
//
// A Proxy accepts (this file); a connection has two halves, each of which moves
// bytes one way (connection.go), read into a buffer only when there is something
// to read (source.go). What it has done is in its Stats (stats.go).
package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
)

// Forwarding says what goes where.
type Forwarding struct {
	Listen, To endpoint.Endpoint
	Options    endpoint.Options // of both

	// MaxConnections bounds how many connections there are at once; more are
	// reset. 0 means no bound.
	MaxConnections int

	// Idle is how long nothing may move on a connection before it is closed. 0
	// means for ever.
	Idle time.Duration

	// DialTimeout bounds how long a client waits for the connection behind the
	// proxy.
	DialTimeout time.Duration
}

// Proxy forwards connections.
type Proxy struct {
	forwarding Forwarding
	log        *slog.Logger
	listener   endpoint.Listener
	dial       func(context.Context) (endpoint.Conn, []ringnet.Reason, error)
	dialing    context.Context // ends when the proxy is closed
	closed     context.CancelFunc
	accepting  chan struct{} // closed when no more connections are accepted
	err        error         // why; set before accepting is closed

	mu          sync.Mutex // guards what follows
	stats       Stats
	connections map[*connection]struct{}
	draining    bool
	full        bool           // the last connection was one too many
	forwarded   sync.WaitGroup // connections
}

// Listen begins to accept connections.
func Listen(ctx context.Context, f Forwarding, log *slog.Logger) (*Proxy, error) {
	l, err := f.Listen.Listen(ctx, f.Options)
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		forwarding:  f,
		log:         log.With("listen", f.Listen.String(), "to", f.To.String()),
		listener:    l,
		dial:        f.To.Dialer(f.Options),
		accepting:   make(chan struct{}),
		stats:       newStats(),
		connections: make(map[*connection]struct{}),
	}
	p.dialing, p.closed = context.WithCancel(context.Background())
	go p.serve()
	if f.Idle > 0 {
		go p.sweep(min(max(f.Idle/8, time.Millisecond), time.Second), p.dialing.Done())
	}
	return p, nil
}

// Forwarding is what p does.
func (p *Proxy) Forwarding() Forwarding { return p.forwarding }

// Addr is where p listens.
func (p *Proxy) Addr() net.Addr { return p.listener.Addr() }

// Wait returns when no more connections are accepted, and why, if that was not
// asked for.
func (p *Proxy) Wait() error {
	<-p.accepting
	return p.err
}

// serve accepts connections until the listener fails or its deadline passes, which
// a Drain sets.
func (p *Proxy) serve() {
	defer close(p.accepting)
	p.end(endpoint.AcceptAll(p.listener, p.dialing.Done(), p.log, p.accept))
}

// end takes note of why the listener has ended.
func (p *Proxy) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.draining {
		p.err = fmt.Errorf("%v: %w", p.forwarding.Listen, err)
	}
	_ = p.listener.Close()
}

// accept forwards a connection, if it may.
func (p *Proxy) accept(c net.Conn) {
	client, err := p.forwarding.Options.Carried(c)
	if err != nil {
		p.refuse(NotRequired)
		p.log.Warn("refused a connection", "error", err)
		return
	}
	p.mu.Lock()
	most := p.forwarding.MaxConnections
	wasFull := p.full
	p.full = most > 0 && p.stats.Connections >= most
	if p.full {
		p.stats.Ended[TooMany]++
	} else {
		p.stats.Connections++
		p.stats.Accepted[client.LocalAddr().Network()]++
		p.forwarded.Add(1)
	}
	full := p.full
	p.mu.Unlock()
	if !full {
		go p.forward(client)
		return
	}
	endpoint.Reset(client)
	if !wasFull {
		p.log.Warn("refuses connections until others end", "max-connections", most)
	}
}

func (p *Proxy) refuse(why Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Ended[why]++
}

// forward dials for a client, and moves bytes until both have ended.
func (p *Proxy) forward(client endpoint.Conn) {
	defer p.forwarded.Done()
	log := p.log.With("client", client.RemoteAddr().String())
	server, passedOver, err := p.dialFor(client)
	if err != nil {
		p.ended(nil, Unreachable)
		log.Warn("cannot connect", "error", err)
		return
	}
	c := newConnection(client, server)
	p.began(c, passedOver)
	log.Debug("began", "accepted over", client.LocalAddr().Network(), "dialed over", server.LocalAddr().Network(), "passed over", misses(passedOver))
	err = c.run()
	outcome := c.end(err)
	p.ended(c, outcome)
	args := []any{"outcome", outcome, "requested", c.requests.moved.Load(), "replied", c.replies.moved.Load()}
	if err != nil {
		args = append(args, "error", err)
	}
	log.Debug("ended", args...)
}

// misses names networks with the codes of the reasons, for the log.
func misses(passedOver []ringnet.Reason) []string {
	var all []string
	for _, r := range passedOver {
		all = append(all, r.Network+": "+string(r.Code))
	}
	return all
}

// dialFor connects a client, which is reset if that cannot be done.
func (p *Proxy) dialFor(client endpoint.Conn) (endpoint.Conn, []ringnet.Reason, error) {
	ctx, cancel := p.dialing, context.CancelFunc(func() {})
	if t := p.forwarding.DialTimeout; t > 0 {
		ctx, cancel = context.WithTimeout(ctx, t)
	}
	defer cancel()
	server, passedOver, err := p.dial(ctx)
	if err != nil {
		endpoint.Reset(client)
	}
	return server, passedOver, err
}

func (p *Proxy) began(c *connection, passedOver []ringnet.Reason) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Dialed[c.server.LocalAddr().Network()]++
	for _, r := range passedOver {
		p.stats.PassedOver[Miss{r.Network, r.Code}]++
	}
	p.connections[c] = struct{}{}
	if p.dialing.Err() != nil {
		c.cut()
	}
}

// ended takes a connection, which is nil if none could be dialed, out of the
// books.
func (p *Proxy) ended(c *connection, why Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Connections--
	p.stats.Ended[why]++
	if c != nil {
		delete(p.connections, c)
		p.stats.add(c)
	}
}

// sweep stops connections that are idle, and, when draining, those that are
// between requests, until done is closed.
func (p *Proxy) sweep(every time.Duration, done <-chan struct{}) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-done:
			return
		}
		now := time.Now()
		p.mu.Lock()
		for c := range p.connections {
			quiet := c.quiet(now)
			switch {
			case p.forwarding.Idle > 0 && quiet >= p.forwarding.Idle:
				c.stop(Idled)
			case p.draining && quiet >= betweenRequests && c.isAnswered():
				c.stop(Drained)
			}
		}
		p.mu.Unlock()
	}
}

// Where the last bytes on a connection were a reply and nothing has moved for
// betweenRequests, no reply is under way, as far as a proxy that does not know
// the protocol can tell.
const betweenRequests = time.Second

// backlogTime is how long a proxy that is about to stop accepts connections that
// its listener has made already.
const backlogTime = 50 * time.Millisecond

// Drain stops accepting, and waits until the connections have ended: by
// themselves, or between two requests. Those that are left when ctx ends are cut
// off, and the error says how many.
func (p *Proxy) Drain(ctx context.Context) error {
	p.mu.Lock()
	p.draining = true
	p.mu.Unlock()
	defer p.Close()
	_ = p.listener.SetDeadline(time.Now().Add(backlogTime))
	<-p.accepting
	ended := make(chan struct{})
	go func() {
		p.forwarded.Wait()
		close(ended)
	}()
	go p.sweep(betweenRequests/10, ended)
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
	}
	before := p.Stats().Connections
	p.Close()
	if before == 0 {
		return nil
	}
	return fmt.Errorf("%v: %d connections were cut off that had not ended in time", p.forwarding.Listen, before)
}

// Close stops accepting and cuts connections off. It returns when they are gone.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.draining = true
	p.closed()
	var left []*connection
	for c := range p.connections {
		left = append(left, c)
	}
	p.mu.Unlock()
	_ = p.listener.Close()
	<-p.accepting
	for _, c := range left {
		c.cut()
	}
	p.forwarded.Wait()
}
