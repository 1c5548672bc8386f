package ringnet

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"time"

	"github.com/ringnet/ringnet/rconn"
)

// Conn is one end of a connection; what Dial and Accept return is one. See
// package rconn for its methods.
type Conn = rconn.Conn

// Buffer is registered memory that a program fills and hands over to a connection, which
// sends from it without a copy; Conn.NewBuffer makes it. See package rconn.
type Buffer = rconn.Buffer

// ErrHandedOver is the error of what is done with a [Buffer] that is handed over.
var ErrHandedOver = rconn.ErrHandedOver

// Config has the sizes, queue depths and times of a connection's end. The zero
// value, and nil, mean the defaults. See package rconn for its fields.
type Config = rconn.Config

// Dialer has the options of dialing. The zero Dialer is Dial without options.
// A Dialer may be used by several goroutines at once.
type Dialer struct {
	// Timeout bounds a dial, name resolution and handshake included. With
	// several addresses each gets a share. Zero means no limit but those of
	// the steps: 5 s each for the address and the route,
	// Config.HandshakeTimeout for a host that does not answer, and 30 s for a
	// listener whose backlog is full.
	//
	// The dial repeats its request to such a listener within that time, as TCP
	// repeats its SYN; then its error is ECONNREFUSED besides a timeout. Over rdma
	// a process has at most 64 requests under way at once, at most 16 of them to
	// one host. Other dials wait for their turn, and the error of one that has
	// waited in vain is a timeout that tells for how many others.
	Timeout time.Duration

	// Deadline is when a dial fails, whatever Timeout says. Zero means never.
	Deadline time.Time

	// LocalAddr is the address to dial from: an [Addr], a *net.TCPAddr, a
	// *net.UDPAddr, or anything else with a method AddrPort. nil lets the system
	// choose.
	LocalAddr net.Addr

	// Resolver resolves names; nil means net.DefaultResolver.
	Resolver *net.Resolver

	// TrustUser decides whether to connect, by shm, to a listener of another user
	// than this process's and root, given its effective user ID as it is called
	// in this process's user namespace. nil trusts no other. It may be called
	// by several goroutines at once, also while no dial is under way: when
	// another link is made beside the first (Config.Links).
	TrustUser func(uid uint32) bool

	// TCP has options of the TCP connections that "auto" dials: Control,
	// KeepAliveConfig, FallbackDelay (for the other networks too), Multipath TCP.
	// Its Timeout and Deadline bound them alone; its LocalAddr and Resolver are for
	// all networks unless they are set here. nil means the defaults.
	TCP *net.Dialer

	// Require names networks that are better than TCP, "shm" or "rdma": on "auto",
	// a connection that none of them carries is an error, with the reasons. With
	// none named, TCP will do.
	Require []string

	// ForTCP names the network to dial for "tcp", which is what most libraries ask
	// their dialers for: "auto", "rdma", or "shm". "tcp4" and "tcp6" mean that
	// network with the same digit. Networks of package net that are not TCP, such as
	// "unix" and "udp", are then dialed as package net does, with the options of TCP;
	// such connections and errors are package net's. With none named, these networks
	// are unknown.
	ForTCP string

	// Trace has functions to call for dials, and for the connections and links that
	// they make. nil means none.
	Trace *Trace

	// Config is for this end of the connections; nil means the defaults.
	Config *Config
}

// Dial connects to the address on the named network: "rdma", "rdma4", "rdma6",
// "shm", "auto", "auto4" or "auto6", or for datagrams "rdma-udp", "rdma-udp4", "rdma-udp6"
// or "shm-udp". The address has the form "host:port", as for net.Dial; the host may be a
// name or an IP address, with a zone where it needs one, and the port a service name or a
// number. The net.Conn is a *[Conn], an *[AutoConn] on "auto", or a *[PacketConn] on the
// networks of datagrams, which waits for no answer. The error is a *net.OpError.
func Dial(network, address string) (net.Conn, error) {
	return (&Dialer{}).Dial(network, address)
}

// DialTimeout acts like Dial but gives up after the timeout.
func DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	return (&Dialer{Timeout: timeout}).Dial(network, address)
}

// Dial connects to the address on the named network. See the function [Dial].
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to the address on the named network. It returns when ctx
// ends; a connection once made does not depend on ctx. See the function [Dial].
func (d *Dialer) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	began := time.Now()
	network, ours := d.choose(network)
	if !ours {
		return d.dialOther(ctx, network, address)
	}
	var addr net.Addr
	if _, ok := autoNetworks[network]; ok {
		c, addr, err = d.dialAuto(ctx, network, address)
		countDial("auto", c, err)
	} else if n, ok := packetNetworks[network]; ok {
		c, addr, err = d.dialPacket(ctx, n, address)
	} else if n, unknown := lookupNetwork(network); unknown != nil {
		err = unknown
	} else {
		c, addr, err = d.dial(ctx, n, address)
		countDial(n.name, c, err)
	}
	if err != nil {
		c, err = nil, &net.OpError{Op: "dial", Net: network, Source: d.LocalAddr, Addr: addr, Err: contextError(err)}
	}
	d.Trace.dialed(network, address, time.Since(began), c, err)
	return c, err
}

// choose returns the network to dial for the one that the caller names, and
// whether it is one of ringnet's or, without ForTCP, is to be.
func (d *Dialer) choose(network string) (string, bool) {
	if d.ForTCP == "" || isNetwork(network) {
		return network, true
	}
	if digit, ok := strings.CutPrefix(network, "tcp"); ok && (digit == "" || digit == "4" || digit == "6") {
		return d.ForTCP + digit, true
	}
	return network, false
}

// dialOther connects as package net does.
func (d *Dialer) dialOther(ctx context.Context, network, address string) (net.Conn, error) {
	other := d.netDialer()
	c, err := other.DialContext(ctx, network, address)
	var unknown net.UnknownNetworkError
	var op *net.OpError
	if errors.As(err, &unknown) && errors.As(err, &op) {
		op.Err = unknownNetwork(network)
	}
	return c, err
}

// dial connects to the address on a network of a fabric, or says what went
// wrong at which of the addresses that it stands for.
func (d *Dialer) dial(ctx context.Context, n network, address string) (*Conn, net.Addr, error) {
	if err := d.Config.Validate(); err != nil {
		return nil, nil, err
	}
	local, err := addrPort(d.LocalAddr)
	if err != nil {
		return nil, nil, err
	}
	resolver := d.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	remotes, err := n.resolve(ctx, resolver, address, n.loopback())
	if err != nil {
		return nil, nil, err
	}
	f, err := n.open(d.TrustUser, d.Config)
	if err != nil {
		return nil, nil, err
	}
	var first error
	var at net.Addr
	for i, remote := range remotes {
		shared, cancel := share(ctx, len(remotes)-i)
		c, err := d.dialPatiently(shared, n, f, local, remote, nil)
		cancel()
		if err == nil {
			return c, nil, nil
		}
		if first == nil {
			first, at = err, rconn.NewAddr(n.name, remote)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, at, first
}

// share is an equal share of the time that ctx has left for one of the given
// number of addresses, but not less than makes sense, as package net has it.
func share(ctx context.Context, addresses int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok || addresses == 1 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, max(time.Until(deadline)/time.Duration(addresses), 2*time.Second))
}

// limit applies Timeout and Deadline to ctx.
func (d *Dialer) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline := d.Deadline
	if d.Timeout != 0 {
		if t := time.Now().Add(d.Timeout); deadline.IsZero() || t.Before(deadline) {
			deadline = t
		}
	}
	if deadline.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline)
}

// contextError gives the end of a context package net's words.
// Errors that say more keep it.
func contextError(err error) error {
	switch err.(type) {
	case *autoError, *requiredError, *waitError, *net.DNSError:
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return canceledError{}
	case errors.Is(err, context.DeadlineExceeded):
		return timeoutError{}
	}
	return err
}

// timeoutError is what a dial that took too long returns. It is both what
// package net's dials and what its connections return then.
type timeoutError struct{}

func (timeoutError) Error() string   { return "i/o timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }
func (timeoutError) Is(err error) bool {
	return err == context.DeadlineExceeded || err == os.ErrDeadlineExceeded
}

// canceledError is what a dial returns when its context was cancelled.
type canceledError struct{}

func (canceledError) Error() string     { return "operation was canceled" }
func (canceledError) Is(err error) bool { return err == context.Canceled }
