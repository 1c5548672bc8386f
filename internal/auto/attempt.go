package auto

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/netns"
	"github.com/ringnet/ringnet/rconn"
)

// Dialer dials addresses over the best network that both ends have. It must not change once it
// is in use.
type Dialer struct {
	Steering
	Networks  []Network  // those of Steering.Better
	TCP       net.Dialer // also for the proofs
	Times     Times
	Namespace netns.Namespace // of the thread that calls Dial

	Failures *Failures
	Lasts    func(error) bool // whether the next dial would most likely fail for the same reason
	Trust    any              // comparable; dialers that trust other users do not share what Failures has

	Wrap func(*net.TCPConn) Conn // makes a connection that TCP carries
}

// Network is one that is better than TCP.
type Network struct {
	Name string
	Open func() (fabric.Fabric, error)

	// Up reports whether a proven link to an address is up and answers.
	Up func(f fabric.Fabric, remote netip.AddrPort) bool

	// Dial connects to an address, over a proven link that is up or over one that it has
	// links make.
	Dial func(ctx context.Context, f fabric.Fabric, remote netip.AddrPort, links *ProvenLinks) (*rconn.Conn, error)
}

// Dial connects to the process that TCP would reach at an address. It takes at most
// Times.Answer longer than TCP alone would. It also returns why networks better than the one
// that carries the connection do not, also if it fails. The error is TCP's, that of ctx, or a
// *[RequiredError].
func (d *Dialer) Dial(ctx context.Context, remote netip.AddrPort) (Conn, []Failure, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the dial of the proof; a connection that it has made goes on
	a := d.newAttempt(ctx, remote)
	if c := a.dialBetter(ctx); c != nil {
		return c, a.passedOver(c.Carrier(), nil), nil
	}
	if !d.FallBack {
		passedOver := a.passedOver("tcp", ErrNoTCP)
		err := cmp.Or[error](ctx.Err(), &RequiredError{passedOver})
		cancel()
		a.discardProof()
		return nil, passedOver, err
	}
	tcp, err := a.dialTCP(ctx)
	if err != nil {
		return nil, a.passedOver("tcp", ErrNoTCP), causeOf(err)
	}
	passedOver := a.passedOver("tcp", ErrLost)
	a.remember(passedOver)
	return d.Wrap(tcp), passedOver, nil
}

// attempt is a dial of one address. One goroutine runs it. A timer and the goroutine that makes
// a link change its state, too.
type attempt struct {
	*Dialer
	remote netip.AddrPort
	state  atomic.Uint32 // a state

	proof  *proof
	trying string                 // the network that is being asked, or was the last one
	failed map[string]Failure     // by network
	asked  map[string]destination // by network: where it has been asked for a link
}

// newAttempt returns a dial that begins. ctx is that of its proof.
func (d *Dialer) newAttempt(ctx context.Context, remote netip.AddrPort) *attempt {
	return &attempt{
		Dialer: d,
		remote: remote,
		proof:  newProof(ctx, d, remote),
		failed: make(map[string]Failure),
		asked:  make(map[string]destination),
	}
}

// state is how far an attempt is. docs/auto.md describes each. A network that fails before it
// has answered does not change it: the next one is asked, and after the last one TCP.
type state uint32

const (
	asking   state = iota // no network has answered
	proving               // one has: TCP connects from the proof's port, or its end is awaited
	proven                // the dialer takes the link
	refused               // the proof's TCP connection carries the traffic
	unsure                // the listener may have closed that connection: a new one carries the traffic
	late                  // no network has answered in time: the attempt takes no link any more
	canceled              // the dial has ended: whoever still makes the link closes everything
)

// follows has the states that may follow each.
var follows = map[state][]state{
	asking:  {proving, late, canceled},
	proving: {proven, refused, unsure, canceled},
}

// move moves the attempt to another state, if that may follow, and returns whether it did.
func (a *attempt) move(to state) bool {
	for {
		from := a.state.Load()
		if !slices.Contains(follows[state(from)], to) {
			return false
		}
		if a.state.CompareAndSwap(from, uint32(to)) {
			return true
		}
	}
}

func (a *attempt) is(s state) bool { return state(a.state.Load()) == s }

// dialBetter connects over a network that is better than TCP. It returns nil if all have
// failed, or none has answered in time.
func (a *attempt) dialBetter(ctx context.Context) Conn {
	candidates := a.candidates()
	if a.FallBack {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		timer := time.AfterFunc(atMostAQuarter(ctx, a.Times.Answer), func() {
			if a.move(late) {
				cancel()
			}
		})
		defer timer.Stop()
	}
	for _, n := range candidates {
		a.trying = n.Name
		failure := n.failure
		if failure == nil {
			c, err := n.Dial(ctx, n.fabric, a.remote, &ProvenLinks{a, n.at})
			if err == nil {
				return c
			}
			failure = &Failure{Network: n.Name, Err: err}
		}
		// Of a network that has not answered in time, passedOver says so.
		if !a.is(late) || !errors.Is(failure.Err, context.Canceled) && !errors.Is(failure.Err, ErrLost) {
			a.failed[n.Name] = *failure
		}
		if !a.is(asking) || ctx.Err() != nil {
			break // the proof has been used for this network
		}
	}
	return nil
}

// atMostAQuarter returns d, or a quarter of the time that ctx has left if that is less. The
// rest of the time is for what comes after the wait.
func atMostAQuarter(ctx context.Context, d time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(d, time.Until(deadline)/4)
	}
	return d
}

// dialTCP returns the TCP connection of a proof that has failed, if it can carry traffic, or a
// new one.
func (a *attempt) dialTCP(ctx context.Context) (*net.TCPConn, error) {
	if a.is(refused) {
		<-a.proof.done
		if c, err := a.proof.conn, a.proof.err; !errors.Is(err, errNoPort) {
			return c, err
		}
	}
	a.discardProof()
	c, err := a.TCP.DialContext(ctx, "tcp", a.remote.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// discardProof closes the TCP connection of a proof that has failed. In other states there is
// none, or whoever makes the link closes it.
func (a *attempt) discardProof() {
	if a.is(refused) || a.is(unsure) {
		a.proof.discard()
	}
}

// passedOver returns why networks better than carrier do not carry the connection. err is the
// reason of those that have not failed.
func (a *attempt) passedOver(carrier string, err error) (failures []Failure) {
	for _, network := range BetterThanTCP {
		if !a.isBetter(network, carrier) {
			continue
		}
		failure, failed := a.failed[network]
		switch {
		case failed:
		case !slices.Contains(a.Better, network):
			failure = Failure{Network: network, Err: ErrOff}
		default:
			failure = Failure{Network: network, Err: err, Unanswered: network == a.trying}
		}
		failures = append(failures, failure)
	}
	return failures
}

// ProvenLinks makes links to one address of one network, each with the proof that TCP leads to
// the same listener.
type ProvenLinks struct {
	attempt *attempt
	at      destination
}

// Request begins a request for a link: it returns an endpoint, and what to call when the
// handshake is over.
type Request func(context.Context) (ep fabric.Endpoint, over func(), err error)

// Answer is how long a link may leave an OPEN without an answer before the dial takes another.
func (p *ProvenLinks) Answer() time.Duration { return p.attempt.Times.Answer }

// Dial makes a link and its first stream: another, if the attempt goes on over others where this
// one fails. That one has a proof of its own, so that the attempt still has its own.
func (p *ProvenLinks) Dial(ctx context.Context, request Request, cfg link.Setup, another bool) (*link.Stream, error) {
	if !another {
		p.attempt.asked[p.at.network] = p.at
		return p.attempt.dialLink(ctx, request, cfg)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := p.attempt.newAttempt(ctx, p.attempt.remote)
	s, err := a.dialLink(ctx, request, cfg)
	if err != nil && !a.is(canceled) {
		cancel()
		a.proof.discard()
	}
	return s, err
}

// dialLink makes a link that is proven. Devices and functions of users may be slow: when ctx
// ends, dialLink returns, and a goroutine closes what they still make.
func (a *attempt) dialLink(ctx context.Context, request Request, cfg link.Setup) (*link.Stream, error) {
	var s *link.Stream
	var err error
	made := make(chan struct{})
	if err := a.Namespace.Go(func() {
		defer close(made)
		s, err = a.makeLink(ctx, request, cfg)
	}); err != nil {
		return nil, err
	}
	select {
	case <-made:
		return s, err
	case <-ctx.Done():
	}
	if !a.move(canceled) && !a.is(late) { // it has just been made, or not
		<-made
		return s, err
	}
	go func() {
		<-made
		if s != nil {
			s.Link().Abort()
			_ = s.Close(0)
		}
		a.proof.discard()
	}()
	return nil, ctx.Err()
}

func (a *attempt) makeLink(ctx context.Context, request Request, cfg link.Setup) (*link.Stream, error) {
	ep, over, err := request(ctx)
	if err != nil {
		return nil, err
	}
	defer over()
	port, err := a.proof.reserve(ep.LocalAddr().Addr())
	if err != nil {
		_ = ep.Close()
		return nil, err
	}
	cfg.Proof = &link.Proof{Port: port, Connect: a.prove, Verify: a.verify}
	s, err := link.Dial(ctx, ep, cfg)
	if err != nil {
		a.move(refused)
	}
	return s, err
}

// prove dials TCP for a link whose request has been answered, unless the attempt has gone on
// without it.
func (a *attempt) prove() error {
	if !a.move(proving) {
		return ErrLost
	}
	return a.proof.connect()
}

// verify waits for what becomes of the proof.
func (a *attempt) verify(ctx context.Context, linkEnded <-chan struct{}) error {
	verdict, err := a.proof.await(ctx, linkEnded)
	a.move(verdict)
	return err
}
