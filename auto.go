package ringnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/copying"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// AutoConn is a connection of the network "auto", as Dial and Accept return it
// there. LocalAddr().Network() tells what carries it: "shm", "rdma" or "tcp".
//
// Besides the methods below it has those of net.Conn, and CloseRead, CloseWrite and
// SetLinger as *[Conn] documents them. SetNoDelay, SetKeepAlive, SetKeepAlivePeriod,
// SetKeepAliveConfig, SetReadBuffer and SetWriteBuffer set what a *net.TCPConn has,
// and do nothing on shm and rdma. For other methods of *Conn, such as Peek, assert
// what NetConn returns.
type AutoConn struct {
	stream
	passedOver []Reason
}

// stream is what a *Conn and a *tcpConn have in common.
type stream interface {
	net.Conn
	io.ReaderFrom
	io.WriterTo
	CloseRead() error
	CloseWrite() error
	SetLinger(sec int) error
	SetNoDelay(noDelay bool) error
	SetKeepAlive(keepAlive bool) error
	SetKeepAlivePeriod(d time.Duration) error
	SetKeepAliveConfig(config net.KeepAliveConfig) error
	SetReadBuffer(bytes int) error
	SetWriteBuffer(bytes int) error
	WriteBuffers(bufs *net.Buffers) (int64, error)
	Stats() Stats
}

// NetConn returns the connection that carries c: a *[Conn] or a *net.TCPConn. What is
// read from or written to the *net.TCPConn directly is not in [Stats] and [Totals], and
// a Close of it is noticed there, and by a [Trace], when it is garbage-collected.
func (c *AutoConn) NetConn() net.Conn {
	if tcp, ok := c.stream.(*tcpConn); ok {
		return tcp.TCPConn
	}
	return c.stream
}

// Stats returns a snapshot of the counters of the connection that carries c. It works
// after Close.
func (c *AutoConn) Stats() Stats { return c.stream.Stats() }

// PassedOver answers the question "why am I not on RDMA?": a reason for each
// network that is better than the one that carries the connection, the best
// first. On the accepting side, where the dialer has chosen, these are the
// networks that this side had not to offer.
func (c *AutoConn) PassedOver() []Reason { return c.passedOver }

// ReadFrom implements io.ReaderFrom as the connection that carries c does.
func (c *AutoConn) ReadFrom(r io.Reader) (int64, error) {
	if _, ok := c.stream.(*Conn); ok || copying.HasDescriptor(r) {
		return c.stream.ReadFrom(r)
	}
	return copying.To(c.stream, r)
}

// WriteTo implements io.WriterTo as the connection that carries c does.
func (c *AutoConn) WriteTo(w io.Writer) (int64, error) {
	_, ok := c.stream.(*Conn)
	if _, reads := w.(io.ReaderFrom); ok || reads || copying.HasDescriptor(w) {
		return c.stream.WriteTo(w)
	}
	return copying.From(w, c.stream)
}

// WriteBuffers is [Conn.WriteBuffers]; over TCP it is [net.Buffers.WriteTo], which
// hands the buffers to the kernel as they are.
func (c *AutoConn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	return c.stream.WriteBuffers(bufs)
}

// tcpDelay is how long "auto" waits for the answer of better networks before it
// dials TCP without them: what RFC 8305, section 5, recommends between attempts. A
// variable, for tests change it.
var tcpDelay = 250 * time.Millisecond

// autoDial is a dial of the network "auto".
type autoDial struct {
	*Dialer
	steering
	networks []network // those of steering.better
	tcp      net.Dialer
	local    netip.AddrPort // LocalAddr
}

// dialAuto connects with whoever TCP connects with, by the best network that
// there is. It connects or fails not much later than TCP alone would.
func (d *Dialer) dialAuto(ctx context.Context, network, address string) (*AutoConn, net.Addr, error) {
	if err := d.Config.Validate(); err != nil {
		return nil, nil, err
	}
	steering, err := d.steer()
	if err != nil {
		return nil, nil, err
	}
	a := &autoDial{Dialer: d, steering: steering, tcp: d.tcpDialer()}
	if a.local, err = addrPort(a.tcp.LocalAddr); err != nil {
		return nil, nil, err
	}
	for _, name := range steering.better {
		n, err := lookupNetwork(name)
		if err != nil {
			return nil, nil, err
		}
		a.networks = append(a.networks, n.besideTCP())
	}
	addrs := autoNetworks[network]
	resolver := a.tcp.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	remotes, err := addrs.resolve(ctx, resolver, address, addrs.loopback())
	if err != nil {
		return nil, nil, err
	}
	if remotes = matching(remotes, a.local.Addr()); len(remotes) == 0 {
		return nil, nil, &net.AddrError{Err: "no address of the local address's family", Addr: address}
	}
	primaries, fallbacks := families(remotes)
	if a.tcp.FallbackDelay < 0 || len(fallbacks) == 0 {
		return a.dialInTurn(ctx, remotes).unpack()
	}
	return a.dialFamilies(ctx, primaries, fallbacks).unpack()
}

// tcpDialer is what dials TCP, and has what else is said about a dial.
func (d *Dialer) tcpDialer() net.Dialer {
	tcp := d.netDialer()
	// Where this fails, dialAuto says what is wrong with the address.
	if local, err := addrPort(d.LocalAddr); err == nil && d.LocalAddr != nil {
		tcp.LocalAddr = net.TCPAddrFromAddrPort(local)
	}
	return tcp
}

// netDialer is package net's dialer with the options of TCP, and those of d that
// are for all networks.
func (d *Dialer) netDialer() net.Dialer {
	var n net.Dialer
	if d.TCP != nil {
		n = *d.TCP
	}
	if d.Resolver != nil {
		n.Resolver = d.Resolver
	}
	if d.LocalAddr != nil {
		n.LocalAddr = d.LocalAddr
	}
	return n
}

// matching are the addresses that can be dialed from a local one.
func matching(remotes []netip.AddrPort, local netip.Addr) (match []netip.AddrPort) {
	for _, remote := range remotes {
		if !local.IsValid() || local.IsUnspecified() || local.Is4() == remote.Addr().Is4() {
			match = append(match, remote)
		}
	}
	return match
}

// families divides addresses into those of the first one's family and others.
func families(remotes []netip.AddrPort) (primaries, fallbacks []netip.AddrPort) {
	for _, remote := range remotes {
		if remote.Addr().Is4() == remotes[0].Addr().Is4() {
			primaries = append(primaries, remote)
		} else {
			fallbacks = append(fallbacks, remote)
		}
	}
	return primaries, fallbacks
}

// dialed is how a dial ended, at which address if it failed.
type dialed struct {
	conn *AutoConn
	addr net.Addr
	err  error
}

func (r dialed) unpack() (*AutoConn, net.Addr, error) { return r.conn, r.addr, r.err }

// dialFamilies dials the addresses of one family, and those of the other once
// that has failed, or has taken FallbackDelay, as package net does (RFC 8305).
func (a *autoDial) dialFamilies(ctx context.Context, primaries, fallbacks []netip.AddrPort) dialed {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of whoever has lost
	first, second := make(chan dialed, 1), make(chan dialed, 1)
	go func() { first <- a.dialInTurn(ctx, primaries) }()
	const recommended = 300 * time.Millisecond // package net's
	delay := a.tcp.FallbackDelay
	if delay == 0 {
		delay = recommended
	}
	select {
	case r := <-first:
		if r.err != nil && ctx.Err() == nil {
			if other := a.dialInTurn(ctx, fallbacks); other.err == nil {
				return other
			}
		}
		return r
	case <-time.After(delay):
	}
	go func() { second <- a.dialInTurn(ctx, fallbacks) }()
	select {
	case r := <-first:
		if r.err == nil {
			go discard(second)
			return r
		}
		if other := <-second; other.err == nil {
			return other
		}
		return r
	case r := <-second:
		if r.err == nil {
			go discard(first)
			return r
		}
		return <-first
	}
}

// discard closes what a dial that has lost may yet connect.
func discard(result <-chan dialed) {
	if r := <-result; r.conn != nil {
		reset(r.conn)
	}
}

// dialInTurn dials addresses one after the other, and returns the first's error
// if all fail.
func (a *autoDial) dialInTurn(ctx context.Context, remotes []netip.AddrPort) dialed {
	var first dialed
	for i, remote := range remotes {
		shared, cancel := share(ctx, len(remotes)-i)
		c, err := newAttempt(a, remote).dial(shared)
		cancel()
		if err == nil {
			return dialed{conn: c}
		}
		if first.err == nil {
			first = dialed{addr: rconn.NewAddr("auto", remote), err: err}
		}
		if ctx.Err() != nil {
			break
		}
	}
	return first
}

// attempt dials one address.
type attempt struct {
	*autoDial
	remote netip.AddrPort
	ctx    context.Context // of the proof
	proof  *proof          // nil until a link is asked for

	abandoned bool // a link is still being made, and the proof is with it

	mu      sync.Mutex // guards what follows
	stage   attemptStage
	why     map[string]Reason      // networks that are better than TCP have failed
	trying  string                 // the network whose turn it is
	waiting error                  // it has no room yet
	asked   map[string]destination // networks that have been asked for a link
}

func newAttempt(a *autoDial, remote netip.AddrPort) *attempt {
	return &attempt{autoDial: a, remote: remote, why: make(map[string]Reason), asked: make(map[string]destination)}
}

// attemptStage is how far the better networks have come.
type attemptStage uint8

const (
	asking  attemptStage = iota // none has answered
	proving                     // one has, and TCP is being dialed for it
	late                        // none has in time, and none is to be connected any more
)

// Why a better network does not carry the connection: TCP was faster.
var errLost = link.ErrLost

// dial connects by a better network or by TCP.
func (a *attempt) dial(ctx context.Context) (*AutoConn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of the proof, unless it is TCP's connection
	a.ctx = ctx
	if c := a.dialBetter(ctx); c != nil {
		return &AutoConn{c, a.passedOver(c.LocalAddr().Network(), nil)}, nil
	}
	if !a.fallBack {
		return nil, a.withoutTCP(ctx)
	}
	tcp, err := a.dialTCP(ctx)
	if err != nil {
		_, err = bare(err)
		return nil, &autoError{contextError(err), a.passedOver("tcp", errNoTCP)}
	}
	reasons := a.passedOver("tcp", errLost)
	a.remember(reasons)
	return &AutoConn{newTCPConn(tcp, a.Trace, true), reasons}, nil
}

// withoutTCP is why none of the better networks has connected, and ends the
// connection that was to prove one's link.
func (a *attempt) withoutTCP(ctx context.Context) error {
	if a.hasProof() {
		a.proof.discard()
	}
	if err := ctx.Err(); err != nil {
		return &autoError{contextError(err), a.passedOver("tcp", errNoTCP)}
	}
	return &requiredError{a.passedOver("tcp", errNoTCP)}
}

// hasProof says whether TCP has been dialed for a proof, which nobody needs any
// more.
func (a *attempt) hasProof() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stage == proving && !a.abandoned
}

// dialTCP returns the connection that a proof has left, or a new one.
func (a *attempt) dialTCP(ctx context.Context) (*net.TCPConn, error) {
	if a.hasProof() {
		if c, err := a.proof.carry(); c != nil || err != nil {
			return c, err
		}
	}
	c, err := a.tcp.DialContext(ctx, "tcp", a.remote.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// dialBetter connects by a network that is better than TCP, or returns nil when
// none does, or none has answered in time.
func (a *attempt) dialBetter(ctx context.Context) stream {
	candidates, any := a.candidates()
	if !any {
		return a.askInTurn(ctx, candidates)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if a.fallBack {
		timer := time.AfterFunc(atMostAQuarter(ctx, tcpDelay), func() {
			if a.giveUp() {
				cancel()
			}
		})
		defer timer.Stop()
	}
	return a.askInTurn(ctx, candidates)
}

// atMostAQuarter is d, or a quarter of the time that ctx has left: the rest is
// for those who were waited for, and for those who had to wait.
func atMostAQuarter(ctx context.Context, d time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(d, time.Until(deadline)/4)
	}
	return d
}

// askInTurn connects by the first network that can be had. Once TCP has been
// dialed for one, nothing would prove another's link.
func (a *attempt) askInTurn(ctx context.Context, candidates []candidate) stream {
	for _, n := range candidates {
		a.try(n.name)
		err := n.err
		if err == nil {
			var c *Conn
			if c, err = a.dialPatiently(ctx, n.network, n.fabric, a.local, a.remote, a); err == nil {
				return c
			}
		}
		if a.failed(err) || ctx.Err() != nil {
			break
		}
	}
	return nil
}

// try begins with a network.
func (a *attempt) try(network string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trying, a.waiting = network, nil
}

// ask says that the network is being asked for a link. The attempt may be nil, as
// in wait.
func (a *attempt) ask(n string, f fabric.Fabric) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[n] = a.destination(n, f)
	if a.proof == nil {
		a.proof = newProof(a.ctx, a.tcp, a.remote)
	}
}

// wait says why the network has to be asked again.
func (a *attempt) wait(err error) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting = err
}

// failed records why the network is not connected, and says whether it was the
// last that could be.
func (a *attempt) failed(err error) (last bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stage == late {
		return true
	}
	why, known := err.(Reason)
	if !known {
		why = reasonOf(a.trying, contextError(err))
	}
	a.why[a.trying] = why
	return a.stage == proving
}

// giveUp says whether no better network is to be connected any more.
func (a *attempt) giveUp() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stage != asking {
		return false
	}
	a.stage = late
	if a.waiting != nil {
		a.why[a.trying] = reasonOf(a.trying, a.waiting)
	}
	return true
}

// prove dials TCP for a link that has been answered, unless it is late.
func (a *attempt) prove() error {
	a.mu.Lock()
	if a.stage == late {
		a.mu.Unlock()
		return errLost
	}
	a.stage = proving
	a.mu.Unlock()
	return a.proof.connect()
}

// passedOver are the reasons of networks that are better than the one that
// carries the connection; err is that of those which had not failed by then.
func (a *attempt) passedOver(carrier string, err error) (reasons []Reason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, network := range betterThanTCP {
		if !a.isBetter(network, carrier) {
			continue
		}
		why, failed := a.why[network]
		switch {
		case failed:
		case slices.Contains(a.off, network):
			why = reasonOf(network, errOff)
		default:
			why = reasonOf(network, err)
			if network == a.trying {
				why.Code = ReasonSilent
			}
		}
		reasons = append(reasons, why)
	}
	return reasons
}

// isBetter says whether a network is better than the one that carries the
// connection: by RINGNET_NETWORKS if that names both.
func (a *attempt) isBetter(network, carrier string) bool {
	if network == carrier || carrier == "tcp" {
		return network != carrier
	}
	i, j := slices.Index(a.better, network), slices.Index(a.better, carrier)
	if i < 0 {
		i, j = slices.Index(betterThanTCP, network), slices.Index(betterThanTCP, carrier)
	}
	return i < j
}

// autoError is TCP's error, and why it was not for a better network to try.
type autoError struct {
	tcp        error
	passedOver []Reason
}

func (e *autoError) Error() string {
	if len(e.passedOver) == 0 {
		return e.tcp.Error()
	}
	return fmt.Sprintf("%v (passed over: %s)", e.tcp, list(e.passedOver))
}

func list(reasons []Reason) string {
	var s []string
	for _, r := range reasons {
		s = append(s, r.Error())
	}
	return strings.Join(s, "; ")
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

// requiredError is why none of the networks carries a connection that must.
type requiredError struct{ reasons []Reason }

func (e *requiredError) Error() string { return "no network but TCP: " + list(e.reasons) }

func (e *requiredError) Unwrap() []error {
	errs := make([]error, len(e.reasons))
	for i, r := range e.reasons {
		errs[i] = r
	}
	return errs
}
