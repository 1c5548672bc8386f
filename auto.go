package ringnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// betterThanTCP are the networks that "auto" would rather have than TCP, the
// best first.
var betterThanTCP = []string{"shm", "rdma"}

// AutoConn is a connection of the network "auto", as Dial and Accept return it
// there. LocalAddr().Network() tells what carries it: "shm", "rdma" or "tcp".
type AutoConn struct {
	stream
	passedOver []error
}

// stream is what a *Conn and a *net.TCPConn have in common.
type stream interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
	SetLinger(sec int) error
}

// NetConn returns the connection that carries c: a *[Conn] or a *net.TCPConn.
func (c *AutoConn) NetConn() net.Conn { return c.stream }

// PassedOver answers the question "why am I not on RDMA?": an error for each
// network that is better than the one that carries the connection, the best
// first. On the accepting side, where the dialer has chosen, these are the
// networks that this side had not to offer.
func (c *AutoConn) PassedOver() []error { return c.passedOver }

// ReadFrom implements io.ReaderFrom as the connection that carries c does.
func (c *AutoConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.stream, r) }

// WriteTo implements io.WriterTo as the connection that carries c does.
func (c *AutoConn) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, c.stream) }

// tcpDelay is how long "auto" waits for a better network before it dials TCP as
// well: what RFC 8305, section 5, recommends between attempts.
const tcpDelay = 250 * time.Millisecond

// dialAuto connects by the best network there is, and not later than TCP alone
// would by more than tcpDelay.
func (d *Dialer) dialAuto(ctx context.Context, address string) (*AutoConn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of whoever has lost
	var r race
	var tcp <-chan dialed // nil while TCP is not being dialed
	better := dialing(func() (stream, error) { return d.dialBetter(ctx, address, &r) })
	startTCP := time.NewTimer(tcpDelay)
	defer startTCP.Stop()
	for {
		select {
		case b := <-better:
			if b.err == nil {
				return &AutoConn{b.conn, r.passedOver()}, nil
			}
			better = nil
			startTCP.Reset(0)
		case <-startTCP.C:
			if tcp == nil && r.open() {
				tcp = dialing(func() (stream, error) { return d.dialTCP(ctx, address, &r) })
			}
		case t := <-tcp:
			tcp = nil
			switch {
			case t.err == nil:
				return &AutoConn{t.conn, r.passedOver()}, nil
			case better == nil && t.err == errLost:
				startTCP.Reset(0) // the winner has fallen at the finish
			case better == nil:
				return nil, &autoError{t.err, r.passedOver()}
			}
		}
	}
}

type dialed struct {
	conn stream
	err  error
}

func dialing(dial func() (stream, error)) <-chan dialed {
	result := make(chan dialed, 1)
	go func() {
		c, err := dial()
		result <- dialed{c, err}
	}()
	return result
}

// dialBetter dials the networks that are better than TCP, the best first.
func (d *Dialer) dialBetter(ctx context.Context, address string, r *race) (stream, error) {
	for _, network := range betterThanTCP {
		r.enter(network)
		c, _, err := d.dial(ctx, network, address, func(ep fabric.Endpoint) fabric.Endpoint {
			return entrant{ep, r}
		})
		if err == nil {
			r.enter("")
			return c, nil
		}
		r.passOver(contextError(err))
	}
	return nil, errLost
}

func (d *Dialer) dialTCP(ctx context.Context, address string, r *race) (stream, error) {
	tcp := net.Dialer{Resolver: d.Resolver, LocalAddr: tcpAddr(d.LocalAddr)}
	c, err := tcp.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if !r.win() {
		_ = c.Close()
		return nil, errLost
	}
	return c.(*net.TCPConn), nil
}

// tcpAddr is a as package net's TCP wants it.
func tcpAddr(a net.Addr) net.Addr {
	if own, ok := a.(Addr); ok {
		return net.TCPAddrFromAddrPort(own.AddrPort())
	}
	return a
}

// race lets one of several attempts win, and remembers why others did not.
type race struct {
	mu     sync.Mutex
	won    bool
	trying string  // the better network under way, or ""
	passed []error // why the ones before it failed
}

var errLost = errors.New("not connected when TCP was")

// win says whether the caller is the first to have a connection.
func (r *race) win() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := !r.won
	r.won = true
	return first
}

// fall takes the win back.
func (r *race) fall() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.won = false
}

func (r *race) open() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.won
}

func (r *race) enter(network string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trying = network
}

func (r *race) passOver(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passed = append(r.passed, fmt.Errorf("%s: %w", r.trying, err))
	r.trying = ""
}

// passedOver is why each network better than the winner did not win.
func (r *race) passedOver() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	passed := slices.Clone(r.passed)
	if r.trying != "" {
		passed = append(passed, fmt.Errorf("%s: %w", r.trying, errLost))
	}
	return passed
}

// entrant is an endpoint that confirms its connection only if it wins, so that
// a connection which has lost does not come out of the peer's Accept. Of TCP
// that cannot be had: a dial that is given up at the moment at which it
// succeeds comes out there, closed.
type entrant struct {
	fabric.Endpoint
	race *race
}

func (e entrant) Confirm() error {
	if !e.race.win() {
		return errLost
	}
	err := e.Endpoint.Confirm()
	if err != nil {
		e.race.fall()
	}
	return err
}

// autoError is TCP's error, and why it was not for a better network to try.
type autoError struct {
	tcp        error
	passedOver []error
}

func (e *autoError) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%v (passed over: ", e.tcp)
	for i, err := range e.passedOver {
		if i > 0 {
			s.WriteString("; ")
		}
		s.WriteString(err.Error())
	}
	s.WriteString(")")
	return s.String()
}

func (e *autoError) Unwrap() error { return e.tcp }

func (e *autoError) Timeout() bool {
	var t net.Error
	return errors.As(e.tcp, &t) && t.Timeout()
}
