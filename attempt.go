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
