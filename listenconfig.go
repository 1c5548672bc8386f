package ringnet

// Listen, and its options.

import (
	"cmp"
	"context"
	"fmt"
	"net"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/hostport"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/netns"
	"github.com/ringnet/ringnet/internal/transport"
	"github.com/ringnet/ringnet/rconn"
)

// ListenConfig has the options of Listen. The zero ListenConfig means the defaults. A
// ListenConfig may be used by several goroutines at once, and must not change
// while it is used.
type ListenConfig struct {
	// TrustUser decides whether shm accepts a dialer of another user than this process's.
	// It is given the dialer's effective user ID, as this process's user namespace numbers
	// users. nil accepts no other user, not even root. Several goroutines may call it at
	// once.
	TrustUser func(uid uint32) bool

	// TCP has options of the TCP listener of "auto": Control, KeepAliveConfig,
	// Multipath TCP. nil means the defaults.
	TCP *net.ListenConfig

	// Require names networks that are better than TCP: "shm", "rdma". If "auto" cannot
	// offer one of them, Listen fails, and the error has the reasons.
	Require []string

	// Trace has functions to call for accepted connections and for their links. nil
	// means none.
	Trace *Trace

	// Config is for this end of the accepted connections; nil means the defaults.
	Config *Config

	// Backlog is how many connections may be in their handshake or wait for Accept. The
	// listener refuses more, and their dialers ask again a little later. 0 means the
	// default, 4096. The maximum is 65536, and larger values mean that. Negative is an
	// error.
	Backlog int

	// PendingMemory limits, in bytes, the memory for links of which Accept has returned no
	// connection yet. It limits two sums separately: the memory that this end's Config asks
	// for, where one link is always allowed; and, over shm, the memory that dialers ask
	// this end to make for them. The listener refuses for good a dialer that alone asks for
	// more. 0 means the default, 256 MiB, enough for 121 links of default size, where each
	// counts as if it were dedicated to one connection. Negative is an error.
	//
	// On "auto", Backlog and PendingMemory apply to shm and to rdma separately.
	PendingMemory int
}

const (
	defaultBacklog       = 4096
	maxBacklog           = 1 << 16
	defaultPendingMemory = 256 << 20
)

// Listen listens at an address of the named network: "auto", "auto4", "auto6", "rdma",
// "rdma4", "rdma6" or "shm". The address has the form "host:port", as for net.Listen.
// Without a host it means all addresses of this machine. Port 0, or no port, means a free
// one; the listener's Addr tells which.
//
// The net.Listener is an *[AutoListener] on "auto", "auto4" and "auto6", and a *[Listener]
// on the other networks. The error is a *net.OpError: errors.Is finds
// errors.ErrUnsupported where this host cannot use the network, and syscall.EADDRINUSE
// where another socket has the port.
func Listen(network, address string) (net.Listener, error) {
	return (&ListenConfig{}).Listen(context.Background(), network, address)
}

// Listen listens at an address of the named network. ctx limits how long the address may
// take to be resolved; the listener does not depend on it. See the function [Listen].
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	address = cmp.Or(address, ":0") // as net.Listen has it
	var addr net.Addr
	n, known := networks[network]
	switch {
	case !known:
		err = unknownNetwork(network)
	case n.Network == overAuto:
		l, addr, err = lc.listenAuto(ctx, n, address)
	default:
		l, addr, err = lc.listenOne(ctx, n, address)
	}
	if err != nil {
		return nil, opError("listen", network, nil, addr, transport.ContextError(err))
	}
	return l, nil
}

// listenOne listens on one network. If it fails it also returns the address at which.
func (lc *ListenConfig) listenOne(ctx context.Context, n namedNetwork, address string) (*Listener, net.Addr, error) {
	l := &Listener{observer: observer{trace: lc.Trace}}
	one, err := lc.listening(n.family, &l.observer)
	if err != nil {
		return nil, nil, err
	}
	addr, err := n.family.ResolveLocal(ctx, "tcp", address)
	if err != nil {
		return nil, nil, err
	}
	if l.listener, err = one.Listen(n.Network, addr); err != nil {
		return nil, rconn.NewAddr(n.Name, addr), err
	}
	l.addr = rconn.NewAddr(n.Name, l.listener.Addr())
	return l, nil, nil
}

// listenAuto listens on TCP and on the same port of each better network.
func (lc *ListenConfig) listenAuto(ctx context.Context, n namedNetwork, address string) (*AutoListener, net.Addr, error) {
	l := &AutoListener{observer: observer{trace: lc.Trace}}
	several, err := lc.listeningAuto(n.family, &l.observer)
	if err != nil {
		return nil, nil, err
	}
	addr, err := n.family.ResolveLocal(ctx, "tcp", address)
	if err != nil {
		return nil, nil, err
	}
	if l.listener, addr, err = several.Listen(ctx, addr); err != nil {
		return nil, rconn.NewAddr("auto", addr), withReasons(err)
	}
	return l, nil, nil
}

// ListenOn listens on "auto" at the address of a TCP listener that exists already, for
// example one that a service manager or an earlier process has passed on. If it succeeds,
// the AutoListener owns tcp and closes it; if it fails, tcp stays the caller's. Where another
// socket has the port of a better network, the listener does not offer that network, and
// PassedOver says so; that socket still gets none of the connections that TCP brings here.
// The error is a *net.OpError.
func (lc *ListenConfig) ListenOn(tcp *net.TCPListener) (*AutoListener, error) {
	l := &AutoListener{observer: observer{trace: lc.Trace}}
	several, err := lc.listeningAuto("ip", &l.observer)
	if err == nil {
		l.listener, err = several.ListenOn(tcp)
	}
	if err != nil {
		addr, _ := hostport.LocalAddrPort(tcp.Addr()) // which is a *net.TCPAddr
		return nil, opError("listen", "auto", nil, rconn.NewAddr("auto", addr), withReasons(err))
	}
	return l, nil
}

// listeningAuto returns what listens on several networks.
func (lc *ListenConfig) listeningAuto(family hostport.Family, o *observer) (*auto.ListenConfig, error) {
	one, err := lc.listening(family, o)
	if err != nil {
		return nil, err
	}
	steering, err := auto.Steer()
	if err == nil {
		_, err = steering.Require("ListenConfig.Require", lc.Require)
	}
	return &auto.ListenConfig{
		ListenConfig: one, Steering: steering, Networks: named(steering.Better), Require: lc.Require,
		TCP: lc.TCP, Times: autoTimes,
	}, err
}

// listening returns what listens on one network at a time.
func (lc *ListenConfig) listening(family hostport.Family, o *observer) (one transport.ListenConfig, err error) {
	if err := lc.Config.Validate(); err != nil {
		return one, err
	}
	if lc.Backlog < 0 {
		return one, fmt.Errorf("ListenConfig.Backlog is %d: want a positive number, or 0 for the default of %d", lc.Backlog, defaultBacklog)
	}
	if lc.PendingMemory < 0 {
		return one, fmt.Errorf("ListenConfig.PendingMemory is %d: want a positive number, or 0 for the default of %d", lc.PendingMemory, defaultPendingMemory)
	}
	return transport.ListenConfig{
		Family: family, Namespace: netns.Current(), Config: (*link.Config)(lc.Config), Trust: lc.TrustUser, Events: o,
		Backlog:       min(cmp.Or(lc.Backlog, defaultBacklog), maxBacklog),
		PendingMemory: cmp.Or(lc.PendingMemory, defaultPendingMemory),
	}, nil
}
