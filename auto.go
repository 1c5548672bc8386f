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
	"github.com/ringnet/ringnet/internal/link"
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
func (c *AutoConn) ReadFrom(r io.Reader) (int64, error) {
	if rf, ok := c.stream.(io.ReaderFrom); ok {
		return rf.ReadFrom(r)
	}
	buf := copyBuffers.Get().(*[32 << 10]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(c.stream, r, buf[:])
}

var copyBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// WriteTo implements io.WriterTo as the connection that carries c does.
func (c *AutoConn) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, c.stream) }

// Variables, for tests change them.
var (
	// tcpDelay is how long "auto" waits for a better network before it dials
	// TCP as well: what RFC 8305, section 5, recommends between attempts.
	tcpDelay = 250 * time.Millisecond

	// rightOfWay is how long a better network that is ready lets a dial of TCP
	// that is under way come to its end.
	rightOfWay = 250 * time.Millisecond
)

// mostRightOfWay is more than a dial of TCP needs that comes to anything.
const mostRightOfWay = time.Minute

// dialAuto connects by the best network there is. Where there is none that is
// better than TCP, it connects or fails not much later than TCP alone would.
func (d *Dialer) dialAuto(ctx context.Context, address string) (*AutoConn, net.Addr, error) {
	if err := d.Config.Validate(); err != nil {
		return nil, nil, err
	}
	var networks []network
	for _, name := range betterThanTCP {
		n, err := lookupNetwork(name)
		if err != nil {
			return nil, nil, err
		}
		networks = append(networks, n)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of whoever has lost
	return d.race(ctx, networks, address)
}

// race dials the better networks and, after a while, TCP, and returns the first
// that is connected. When TCP has failed, the better networks have as long again.
func (d *Dialer) race(ctx context.Context, networks []network, address string) (*AutoConn, net.Addr, error) {
	delay := atMostAQuarter(ctx, tcpDelay)
	r := race{delay: delay, rightOfWay: atMostAQuarter(ctx, rightOfWay), fallen: make(chan struct{}, 1)}
	better := dialing(func() (stream, error) { return d.dialBetter(ctx, networks, address, &r) })
	var tcp <-chan dialed // nil while TCP is not being dialed
	var tcpFailed error
	due := false
	startTCP := func() {
		due = true
		tcpCtx, cancelTCP := context.WithCancelCause(ctx)
		if tcp == nil && r.startTCP(func() { cancelTCP(errLost) }) {
			tcp = dialing(func() (stream, error) { return d.dialTCP(tcpCtx, address, &r) })
		}
	}
	fail := func() (*AutoConn, net.Addr, error) {
		addr, err := bare(tcpFailed)
		return nil, addr, &autoError{contextError(err), r.reasons(errSlow)}
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for {
		select {
		case b := <-better:
			switch {
			case b.err == nil:
				return &AutoConn{b.conn, r.passed}, nil, nil
			case tcpFailed != nil:
				return fail()
			}
			better = nil
			startTCP()
		case <-r.fallen:
			if due && tcpFailed == nil {
				startTCP() // which may have been given up for it
			}
		case <-timer.C:
			switch {
			case tcpFailed == nil:
				startTCP()
			case r.end():
				return fail()
			default:
				timer.Reset(delay) // somebody is winning, or falls yet
			}
		case t := <-tcp:
			tcp = nil
			switch {
			case t.err == nil:
				return &AutoConn{t.conn, r.reasons(errLost)}, nil, nil
			case t.err == errLost:
				startTCP() // unless it has lost for good
				continue
			}
			tcpFailed = t.err
			if better == nil {
				return fail()
			}
			timer.Reset(delay)
		}
	}
}

// atMostAQuarter is d, or a quarter of the time that ctx has left: the rest is
// for those who were waited for, and for those who had to wait.
func atMostAQuarter(ctx context.Context, d time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(d, time.Until(deadline)/4)
	}
	return d
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
func (d *Dialer) dialBetter(ctx context.Context, networks []network, address string, r *race) (stream, error) {
	for _, n := range networks {
		c, _, err := d.dial(ctx, n, address, r)
		if err == nil {
			return c, nil
		}
		r.passOver(n.name, contextError(err))
	}
	return nil, errLost
}

func (d *Dialer) dialTCP(ctx context.Context, address string, r *race) (stream, error) {
	tcp := net.Dialer{Resolver: d.Resolver}
	if local, err := addrPort(d.LocalAddr); err != nil {
		return nil, err
	} else if d.LocalAddr != nil {
		tcp.LocalAddr = net.TCPAddrFromAddrPort(local)
	}
	c, err := tcp.DialContext(ctx, "tcp", address)
	switch won := r.endTCP(err == nil); {
	case err != nil && context.Cause(ctx) == errLost:
		return nil, errLost
	case err != nil:
		return nil, err
	case !won:
		_ = c.Close()
		return nil, errLost
	}
	return c.(*net.TCPConn), nil
}

// race lets one of two attempts win, TCP or the better networks, and remembers
// why others did not.
type race struct {
	delay  time.Duration // before TCP is dialed
	fallen chan struct{} // has room for one; sent to when a winner has fallen

	mu         sync.Mutex    // guards what follows
	rightOfWay time.Duration // of TCP
	won        bool
	finishing  bool          // a better network waits for the end of a dial of TCP
	tcp        chan struct{} // not nil while TCP is being dialed; then closed
	cancelTCP  func()
	passed     []error // why better networks failed
	waiting    error   // why the next of them is not connected yet, if it has said
}

// Why a better network does not carry the connection: somebody was faster, or
// not even TCP could be had.
var (
	errLost = link.ErrLost
	errSlow = errors.New("not connected when TCP had failed")
)

// startTCP says whether TCP is to be dialed.
func (r *race) startTCP(cancel func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.won || r.finishing {
		return false
	}
	r.tcp, r.cancelTCP = make(chan struct{}), cancel
	return true
}

// endTCP says whether TCP, if it is connected, has won.
func (r *race) endTCP(connected bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.tcp)
	r.tcp = nil
	if !connected || r.won {
		return false
	}
	r.won = true
	return true
}

// winBetter says whether a better network, which is about to be connected, has
// won. A connection of TCP comes out of the peer's Accept whether it has won or
// not, so once TCP is being dialed it has the right of way. If that takes too
// long, for it may be that nobody answers, the dial is given up.
func (r *race) winBetter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if tcp, cancel, patience := r.tcp, r.cancelTCP, r.rightOfWay; tcp != nil {
		r.finishing = true
		r.mu.Unlock()
		select {
		case <-tcp:
		case <-time.After(patience):
			cancel()
			<-tcp
		}
		r.mu.Lock()
		r.finishing = false
	}
	first := !r.won
	r.won = true
	return first
}

// gate lets a better network's connection through on a link that is up, as
// entrant does where one is made. A peer that answers later than TCP is dialed
// may be stopped: then it has not won before it answers.
func (r *race) gate() link.Gate {
	if r == nil {
		return link.Gate{}
	}
	return link.Gate{
		Enter: func() error {
			if !r.winBetter() {
				return errLost
			}
			return nil
		},
		Leave:    r.fall,
		Patience: r.delay,
	}
}

// fall takes back the win of a better network. TCP may have been given up for
// it, and is not given up so soon again.
func (r *race) fall() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.won = false
	r.rightOfWay = min(2*r.rightOfWay, mostRightOfWay)
	select {
	case r.fallen <- struct{}{}:
	default:
	}
}

// end says whether nobody has won, and from now on nobody does.
func (r *race) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	unwon := !r.won
	r.won = true
	return unwon
}

// passOver records why a better network is given up: if TCP has won meanwhile, why
// it was not connected before.
func (r *race) passOver(network string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reason := fmt.Errorf("%s: %w", network, err)
	if r.won && r.waiting != nil {
		reason = r.waiting
	}
	r.passed = append(r.passed, reason)
	r.waiting = nil
}

// wait records why a better network, which is the next, is not connected yet.
func (r *race) wait(network string, err error) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = fmt.Errorf("%s: %w", network, err)
}

// reasons is why no better network has won; late is the reason of those that have
// none of their own.
func (r *race) reasons(late error) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	reasons := slices.Clone(r.passed)
	if r.waiting != nil {
		reasons = append(reasons, r.waiting)
	}
	for _, network := range betterThanTCP[len(reasons):] {
		reasons = append(reasons, fmt.Errorf("%s: %w", network, late))
	}
	return reasons
}

// dialLink makes a link if it wins; a nil race is won.
func (r *race) dialLink(ctx context.Context, ep fabric.Endpoint, cfg link.Config) (*link.Stream, error) {
	if r != nil {
		ep = entrant{ep, r}
	}
	return link.Dial(ctx, ep, cfg)
}

// entrant is an endpoint that confirms its connection only if it wins, so that
// a connection which has lost does not come out of the peer's Accept.
type entrant struct {
	fabric.Endpoint
	race *race
}

func (e entrant) Confirm() error {
	if !e.race.winBetter() {
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

func (e *autoError) Temporary() bool {
	var t interface{ Temporary() bool }
	return errors.As(e.tcp, &t) && t.Temporary()
}
