package ringnet

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
)

// attempt is a dial of auto to one address. One goroutine runs it, but for what mu guards.
type attempt struct {
	*autoDial
	remote netip.AddrPort
	ctx    context.Context // of the proof
	proof  *proof          // nil until a network is asked for a link

	abandoned bool // makeLink has left its request, and the proof with it, to a goroutine

	mu      sync.Mutex // guards what follows
	stage   attemptStage
	why     map[string]Reason      // by network: why it has failed
	trying  string                 // the network that is being asked
	waiting error                  // why that network has to be asked again
	asked   map[string]destination // by network: where it has been asked for a link
}

func newAttempt(a *autoDial, remote netip.AddrPort) *attempt {
	return &attempt{autoDial: a, remote: remote, why: make(map[string]Reason), asked: make(map[string]destination)}
}

// attemptStage is how far an attempt has come with the networks that are better than TCP.
// giveUp and prove move it on, each from asking alone.
type attemptStage uint8

const (
	asking  attemptStage = iota // none has answered yet
	proving                     // one has answered, and TCP is being dialed to prove its link
	late                        // none has answered in time; the attempt takes no link any more
)

// errLost is why a better network does not carry a connection that TCP carries: TCP was
// connected first.
var errLost = link.ErrLost

// dial connects over a better network, or else over TCP.
func (a *attempt) dial(ctx context.Context) (*AutoConn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the dial of the proof; a connection that it has made goes on
	a.ctx = ctx
	if c := a.dialBetter(ctx); c != nil {
		return newAutoConn(c, a.passedOver(c.Carrier(), nil)), nil
	}
	if !a.fallBack {
		return nil, a.withoutTCP(ctx)
	}
	tcp, err := a.dialTCP(ctx)
	if err != nil {
		_, err = unwrapOp(err)
		return nil, &autoError{contextError(err), a.passedOver("tcp", errNoTCP)}
	}
	reasons := a.passedOver("tcp", errLost)
	a.remember(reasons)
	return newAutoConn(newTCPConn(tcp, a.Trace, true), reasons), nil
}

// withoutTCP closes the TCP connection of the proof, and returns why none of the better
// networks has connected.
func (a *attempt) withoutTCP(ctx context.Context) error {
	if a.hasProof() {
		a.proof.discard()
	}
	if err := ctx.Err(); err != nil {
		return &autoError{contextError(err), a.passedOver("tcp", errNoTCP)}
	}
	return &requiredError{a.passedOver("tcp", errNoTCP)}
}

// hasProof reports whether TCP has been dialed for a proof, which the attempt no longer needs.
func (a *attempt) hasProof() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stage == proving && !a.abandoned
}

// dialTCP returns the TCP connection of a proof that has failed, if it can carry traffic, or a
// new one.
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

// dialBetter connects over a network that is better than TCP. It returns nil if all have
// failed, or none has answered in time.
func (a *attempt) dialBetter(ctx context.Context) stream {
	candidates, worth := a.candidates()
	if !worth {
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

// atMostAQuarter returns d, or a quarter of the time that ctx has left if that is less. The
// rest of the time is for what comes after the wait.
func atMostAQuarter(ctx context.Context, d time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(d, time.Until(deadline)/4)
	}
	return d
}

// askInTurn asks one network after the other, and connects over the first that can. It stops
// at the first network that answers: the proof has been used for that one.
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

// try notes the network that is asked next.
func (a *attempt) try(network string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trying, a.waiting = network, nil
}

// ask notes that a network is being asked for a link, and prepares the proof. On a nil
// attempt, a dial of "rdma" or "shm", it does nothing.
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

// wait notes why the network has to be asked again. On a nil attempt it does nothing.
func (a *attempt) wait(err error) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting = err
}

// failed records why the network has failed, and returns whether no other is to be asked.
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

// giveUp ends the wait for better networks, unless one has answered, and returns whether it
// did.
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

// prove dials TCP for a link whose request has been answered, unless the attempt has given up.
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

// passedOver returns the reasons why networks better than carrier do not carry the
// connection. err is the reason of those that have not failed.
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

// isBetter reports whether a network is better than the one that carries the connection.
// RINGNET_NETWORKS decides if it names both.
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
