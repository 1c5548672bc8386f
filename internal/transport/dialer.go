package transport

// A dial of one address of one network: which links lead there, and how a connection begins on one.

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/ringnet/ringnet/internal/bubble"
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hostport"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/netns"
	"github.com/ringnet/ringnet/rconn"
)

// Dialer dials addresses over one network or another. It must not change once it is in use.
type Dialer struct {
	Asked     string // the network that the program has asked for
	Family    hostport.Family
	Namespace netns.Namespace // of the thread that dials
	Local     netip.AddrPort
	Resolver  *net.Resolver // nil: net.DefaultResolver
	Config    *link.Config
	Events    Events

	Trust   Trust
	Trustee any // comparable: dialers with Trust share links where this is the same

	// Answer is how long a link may leave an OPEN without an answer before a dial takes another: see
	// [link.More].
	Answer time.Duration
}

// Destination is an address of a network to which connections are dialed.
type Destination struct {
	*Dialer
	network *Network
	fabric  fabric.Fabric
	setup   link.Setup // of the links that are made
	key     linkKey    // of the links that are shared
}

// linkKey is what dials must have in common to share a link.
type linkKey struct {
	network       string
	namespace     netns.Namespace
	fabric        fabric.Fabric // nil with trust
	local, remote netip.AddrPort
	config        link.Config // with its defaults
	trustee       any         // Dialer.Trustee; nil without Trust
	proven        bool        // with the proof that TCP leads to the same listener
	bubble        bool        // made in one of testing/synctest
}

// links are the links that this process has dialed and on which more connections may begin.
var links link.Pool[linkKey]

// patience is how long a dial without a deadline asks a listener that has no room again.
const patience = 30 * time.Second

// At returns an address of a network whose fabric is open. proven says whether its links are made with
// the proof that TCP leads to the same listener: they are not shared with others.
func (d *Dialer) At(n *Network, f fabric.Fabric, remote netip.AddrPort, proven bool) (*Destination, error) {
	setup, err := n.setup(d.Config, f, d.Namespace)
	if err != nil {
		return nil, err
	}
	setup.Dedicated = setup.Dedicated || d.Local.Port() != 0
	key := linkKey{
		network: n.Name, namespace: d.Namespace, fabric: f, local: d.Local, remote: remote,
		config: setup.Config, proven: proven, bubble: bubble.In(),
	}
	if d.Trust != nil {
		key.fabric, key.trustee = nil, d.Trustee // each dial opens a fabric of its own, which asks Trust
	}
	return &Destination{d, n, f, setup, key}, nil
}

// Up reports whether there is a link on which connections can begin, and whose peer answers.
func (at *Destination) Up() bool { return links.Up(at.key, at.Answer) }

// Dial connects over a link that is up, or over one that connect makes. It asks again while the
// listener has no room, or while this process has no memory but is about to get some.
func (at *Destination) Dial(ctx context.Context, connect link.Connect) (*rconn.Conn, error) {
	began := time.Now()
	_, limited := ctx.Deadline()
	var busy error
	var pauses fabric.Pauses
	for {
		c, err := at.dial(ctx, connect)
		switch {
		case err != nil && ctx.Err() != nil && busy != nil:
			return nil, waited(ctx, busy)
		case err == nil, !isBusy(err), !limited && time.Since(began) > patience:
			return c, err
		}
		busy = err
		if !pauses.Wait(ctx) {
			return nil, waited(ctx, busy)
		}
	}
}

// isBusy reports whether the same dial may succeed a little later.
func isBusy(err error) bool {
	var refused *fabric.RefusedError
	var shortage *budget.ShortageError
	return errors.As(err, &refused) && refused.Busy || errors.As(err, &shortage) && shortage.Releasing
}

// dial does what Dial does, once.
func (at *Destination) dial(ctx context.Context, connect link.Connect) (*rconn.Conn, error) {
	var made *link.Link // nil if the connection begins on a link that was there
	noting := func(ctx context.Context, another bool) (*link.Stream, error) {
		s, err := connect(ctx, another)
		if err == nil {
			made = s.Link()
		}
		return s, err
	}
	var s *link.Stream
	var err error
	if at.setup.Dedicated {
		s, err = noting(ctx, false)
	} else {
		s, err = links.Dial(ctx, at.key, noting, link.More{Links: at.Config.MostLinks(), Answer: at.Answer})
	}
	if err != nil {
		return nil, err
	}
	c := at.Events.Opened(s)
	if made != nil {
		at.Events.LinkMade(made) // if the user's function panics, the garbage collector closes c
	}
	return c, nil
}

// Link makes a link and its first stream, when the network allows one more request. prove, which may
// be nil, returns the link's proof, for the local address that it has.
func (at *Destination) Link(ctx context.Context, prove func(local netip.Addr) (*link.Proof, error)) (*link.Stream, error) {
	host := remoteHost{at.Namespace, at.key.remote.Addr()}
	if err := at.network.Requests.enter(ctx, host); err != nil {
		return nil, err
	}
	defer at.network.Requests.leave(host)
	ep, err := at.fabric.Dial(ctx, at.Local, at.key.remote)
	if err != nil {
		return nil, err
	}
	setup := at.setup
	if prove != nil {
		if setup.Proof, err = prove(ep.LocalAddr().Addr()); err != nil {
			_ = ep.Close()
			return nil, err
		}
	}
	return link.Dial(ctx, ep, setup)
}
