package auto

// A dial of one address: the better networks are asked in turn, with a proof that TCP leads to the
// same listener, and TCP when none of them has answered in time.

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/transport"
)

// Dialer dials addresses over the best network that both ends have. It must not change once it
// is in use.
type Dialer struct {
	transport.Dialer
	Steering
	Networks []*transport.Network // those of Steering.Better
	TCP      net.Dialer           // also for the proofs
	Times    Times
	Failures *Failures
	Lasts    func(error) bool // whether the next dial would most likely fail for the same reason
}

// Dialed is a connection, and why no better network carries it.
type Dialed struct {
	transport.Conn
	PassedOver PassedOver
}

// dial connects to the process that TCP would reach at one address. It takes at most Times.Answer
// longer than TCP alone would.
func (d *Dialer) dial(ctx context.Context, remote netip.AddrPort) (Dialed, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the dial of the proof; a connection that it has made goes on
	a := d.newAttempt(ctx, remote)
	if c := a.dialBetter(ctx); c != nil {
		return Dialed{c, a.passedOver(c.Carrier(), nil)}, nil
	}
	if !d.FallBack {
		passedOver := a.passedOver("tcp", ErrNoTCP)
		ended := ctx.Err()
		cancel()
		a.discardProof()
		if ended != nil {
			return Dialed{}, &DialError{transport.ContextError(ended), passedOver}
		}
		return Dialed{}, &RequiredError{passedOver}
	}
	tcp, err := a.dialTCP(ctx)
	if err != nil {
		return Dialed{}, &DialError{transport.ContextError(causeOf(err)), a.passedOver("tcp", ErrNoTCP)}
	}
	passedOver := a.passedOver("tcp", ErrTCPFirst)
	a.remember(passedOver)
	return Dialed{d.Events.OpenedTCP(tcp), passedOver}, nil
}

// attempt is a dial of one address. One goroutine runs it. A timer and the goroutine that makes
// a link change its state, too.
type attempt struct {
	*Dialer
	progress
	remote netip.AddrPort

	proof  *proof
	trying string                // the network that is being asked, or was the last one
	failed map[string]Failure    // by network
	asked  map[string]failureKey // by network: where it has been asked for a link
}

// newAttempt returns a dial that begins. ctx is that of its proof.
func (d *Dialer) newAttempt(ctx context.Context, remote netip.AddrPort) *attempt {
	return &attempt{
		Dialer: d,
		remote: remote,
		proof:  newProof(ctx, d.TCP, remote, d.Times, d.Namespace),
		failed: make(map[string]Failure),
		asked:  make(map[string]failureKey),
	}
}

// dialBetter connects over a network that is better than TCP. It returns nil if all have
// failed, or none has answered in time.
func (a *attempt) dialBetter(ctx context.Context) transport.Conn {
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
			c, err := n.links.Dial(ctx, func(ctx context.Context, another bool) (*link.Stream, error) {
				return a.connect(ctx, n, another)
			})
			if err == nil {
				return c
			}
			if waited := (*transport.WaitError)(nil); errors.As(err, &waited) {
				err = waited.Cause // the attempt knows how ctx has ended
			}
			failure = &Failure{Network: n.Name, Err: transport.ContextError(err)}
		}
		// Of a network that has not answered in time, passedOver says so.
		if !a.is(late) || !errors.Is(failure.Err, context.Canceled) && !errors.Is(failure.Err, ErrTCPFirst) {
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
func (a *attempt) passedOver(carrier string, err error) (failures PassedOver) {
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

// connect makes a link with the proof that TCP leads to the same listener, and its first stream:
// another, if the attempt goes on over others where this one fails. That one has a proof of its own,
// so that the attempt still has its own.
func (a *attempt) connect(ctx context.Context, to *candidate, another bool) (*link.Stream, error) {
	if !another {
		a.asked[to.Name] = to.key
		return a.dialLink(ctx, to.links)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	other := a.newAttempt(ctx, a.remote)
	s, err := other.dialLink(ctx, to.links)
	if err != nil && !other.is(canceled) {
		cancel()
		other.proof.discard()
	}
	return s, err
}

// dialLink makes a link that is proven. Devices and functions of users may be slow: when ctx
// ends, dialLink returns, and a goroutine closes what they still make.
func (a *attempt) dialLink(ctx context.Context, to *transport.Destination) (*link.Stream, error) {
	var s *link.Stream
	var err error
	made := make(chan struct{})
	if err := a.Namespace.Go(func() {
		defer close(made)
		s, err = a.makeLink(ctx, to)
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

// makeLink makes the link that dialLink waits for.
func (a *attempt) makeLink(ctx context.Context, to *transport.Destination) (*link.Stream, error) {
	s, err := to.Link(ctx, func(local netip.Addr) (*link.Proof, error) {
		port, err := a.proof.reserve(local)
		return &link.Proof{Port: port, Connect: a.prove, Verify: a.verify}, err
	})
	if err != nil {
		a.move(refused) // if TCP was to prove it
	}
	return s, err
}

// prove dials TCP for a link whose request has been answered, unless the attempt has gone on
// without it.
func (a *attempt) prove() error {
	if !a.move(proving) {
		return ErrTCPFirst
	}
	return a.proof.connect()
}

// verify waits for what becomes of the proof.
func (a *attempt) verify(ctx context.Context, linkEnded <-chan struct{}) error {
	verdict, err := a.proof.await(ctx, linkEnded)
	a.move(verdict)
	return err
}

// candidate is a network to ask for a connection, or how it has failed before it was asked.
type candidate struct {
	*transport.Network
	key     failureKey
	links   *transport.Destination // proven; nil if its fabric does not open
	failure *Failure
}

// candidates returns the networks in the order to ask them. A failure to make a link does not count
// while one is up, which may have been silent or without a path when another was asked for.
func (a *attempt) candidates() (candidates []*candidate) {
	for _, n := range a.Networks {
		c := &candidate{Network: n, key: failureKey{network: n.Name, namespace: a.Namespace}}
		if c.failure = a.remembered(c.key); c.failure == nil {
			if err := a.open(c); err != nil {
				a.asked[n.Name] = c.key
				c.failure = &Failure{Network: n.Name, Err: err}
			} else if c.failure = a.remembered(c.key); c.failure != nil && c.links.Up() {
				c.failure = nil
			}
		}
		candidates = append(candidates, c)
	}
	return candidates
}

// open opens the fabric of a candidate.
func (a *attempt) open(c *candidate) error {
	f, err := c.Open(a.Trust, a.Config)
	if err != nil {
		return err
	}
	if c.links, err = a.At(c.Network, f, a.remote, true); err != nil {
		return err
	}
	if a.Trust != nil {
		f = nil // each dial has one of its own
	}
	c.key = failureKey{c.Name, a.Namespace, f, a.Trustee, a.remote}
	return nil
}

// remembered returns how a network has failed lately, or nil. It saves the time before TCP is dialed: where TCP is
// not enough, each dial asks.
func (a *attempt) remembered(key failureKey) *Failure {
	if !a.FallBack {
		return nil
	}
	return a.Failures.find(key, a.Times.Remember)
}

// remember keeps the failures of networks that were asked. It is called when TCP has connected:
// otherwise the peer may not have started yet.
func (a *attempt) remember(failures []Failure) {
	for _, f := range failures {
		if key, ok := a.asked[f.Network]; ok && (f.Unanswered || a.Lasts(f.Err)) {
			a.Failures.add(key, f, a.Times.Remember)
		}
	}
}
