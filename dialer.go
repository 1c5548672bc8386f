package ringnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/ringnet/ringnet/internal/hostport"
	"github.com/ringnet/ringnet/rconn"
)

// Conn is one end of a reliable byte stream over RDMA or shared memory. Dial and Accept
// return a *Conn on the networks "rdma" and "shm"; on "auto" they return an [AutoConn], whose
// NetConn method returns the *Conn unless TCP carries the connection.
//
// Package [rconn] documents the methods:
//
//	Read, Write, Close, LocalAddr, RemoteAddr                 of a net.Conn
//	SetDeadline, SetReadDeadline, SetWriteDeadline            of a net.Conn
//	CloseRead, CloseWrite, SetLinger                          half-closes, and what Close does
//	ReadFrom, WriteTo, WriteBuffers                           fewer copies and calls
//	Peek, Buffered, Discard, NewBuffer, WriteBuffer           without a copy
//	AwaitRead                                                 waits without a buffer
//	Carrier, Stats, Link, PeerUser                            the network, the counters, the link,
//	                                                          and over shm who the peer is
//	SyscallConn                                               shows whether the Conn is alive
//	SetNoDelay, SetKeepAlive, SetKeepAlivePeriod,
//	SetKeepAliveConfig, SetReadBuffer, SetWriteBuffer         change nothing: see Config
//
// They may be called by several goroutines at once. The bytes of concurrent Writes do not mix,
// and concurrent Reads get different bytes. Read and Write do not keep the slice that they are
// given. A Conn that is garbage-collected without Close is closed then. If a process exits without
// Close, what Write has accepted may be lost, and its peers read ECONNRESET behind what has arrived.
//
// Errors other than io.EOF are *net.OpError. errors.Is finds in them
//
//	os.ErrDeadlineExceeded  the deadline has passed; the connection is still usable
//	net.ErrClosed           this side has called Close
//	syscall.EPIPE           Write after CloseWrite, or after the peer has closed
//	syscall.ECONNRESET      the peer is gone without Close, or has closed with bytes unread
//	syscall.ETIMEDOUT       the peer's device does not answer; or Close could not deliver in time
//	syscall.ECONNABORTED    an operator has ended the connection: see ringnet kill
//	syscall.ENETDOWN        this side's device is gone
//	syscall.ENOTCONN        CloseRead or CloseWrite after the connection was lost, or both ends
//	                        have ended their directions
//	syscall.EPROTO          the peer broke the protocol
//
// When the path or a device is lost, the connection waits for another before it fails: see
// [Config].ResumeTimeout. While the peer's process is stopped the connection does not fail,
// because the peer's device still answers: Reads and Writes wait until their deadlines. But if
// this side closes another connection to it meanwhile, and the peer does not go on within
// ResumeTimeout and 10 s, those that share a link with that one fail.
type Conn = rconn.Conn

// Buffer is registered memory from which the device sends without a copy. A Buffer belongs to
// the connection whose [rconn.Conn.NewBuffer] made it. The program fills it by Write or Fill, and
// hands it over by [rconn.Conn.WriteBuffer]. The device hands it back, empty, when it has sent the
// bytes; Wait waits for that. In the meantime Write, Fill and WriteBuffer fail with
// [ErrHandedOver]. The program never gets a slice of the memory.
//
//	b, err := conn.NewBuffer(1 << 20)
//	…
//	for err == nil {
//		b.Wait()
//		if _, err = b.Fill(file); err == nil {
//			_, err = conn.WriteBuffer(b)
//		}
//	}
//	b.Close()
//
// With two Buffers, a program can fill one while the device sends the other. The methods may be
// called by several goroutines at once; [rconn.Buffer] documents them: Write, Fill, Len, Wait,
// Close. The memory counts against [SetMemoryLimit], and is pinned on rdma. The memory and the
// link stay until Close, or until the garbage collector finds the Buffer. Over shm a Buffer saves
// nothing: both a Write and a Buffer copy once.
type Buffer = rconn.Buffer

// ErrHandedOver is the error of methods of a [Buffer] that the device is still sending from.
var ErrHandedOver = rconn.ErrHandedOver

// Dialer has the options of Dial. The zero Dialer means the defaults. A Dialer may be used by
// several goroutines at once, and must not change while it is used.
type Dialer struct {
	// Timeout limits a whole dial, with name resolution and handshake. If the name has
	// several addresses, each gets a share of the time. Zero means that only the steps
	// have limits: 5 s for the address and 5 s for the route, Config.HandshakeTimeout for a
	// host that does not answer, and 30 s for a listener whose backlog is full.
	//
	// A dial repeats its request to a listener whose backlog is full, as TCP repeats its
	// SYN. If its time ends there, the error is both a timeout and ECONNREFUSED. Over rdma
	// a process has at most 64 requests under way, at most 16 of them to one host. Other
	// dials wait for their turn; if the time of one ends there, the error is a timeout, and
	// says how many others were ahead.
	Timeout time.Duration

	// Deadline is the time at which a dial fails, whatever Timeout is. Zero means none.
	Deadline time.Time

	// LocalAddr is the address to dial from: an [Addr], a *net.TCPAddr, a *net.UDPAddr, or
	// any other net.Addr with a method AddrPort. nil lets the system choose.
	LocalAddr net.Addr

	// Resolver resolves names; nil means net.DefaultResolver.
	Resolver *net.Resolver

	// TrustUser decides whether shm connects to a listener of another user than this
	// process's user and root. It is given the listener's effective user ID, as this
	// process's user namespace numbers users. nil trusts no other user. Several goroutines
	// may call it at once, and also when no dial is under way: for the links that are made
	// beside the first (Config.Links).
	TrustUser func(uid uint32) bool

	// TCP has options of the TCP connections that "auto" dials: Control, KeepAliveConfig,
	// Multipath TCP, and FallbackDelay, which applies to shm and rdma too. Its Timeout and
	// Deadline limit TCP alone. Its LocalAddr and Resolver apply to all networks, unless
	// this Dialer sets its own. nil means the defaults.
	TCP *net.Dialer

	// Require names networks that are better than TCP: "shm", "rdma". If none of them
	// carries the connection, a dial of "auto" fails, and the error has the reasons. Empty
	// means that TCP may carry it.
	Require []string

	// ForTCP names the network to dial when the caller asks for "tcp", as most libraries
	// do: "auto", "rdma" or "shm". The connection is an *[AutoConn], whose addresses are
	// those of package net. "tcp4" and "tcp6" mean that network with the same digit; shm has
	// none with a digit. Networks of package net other than TCP, such as "unix" and "udp",
	// are then dialed by package net with the options in TCP, and return its connections and
	// errors. If ForTCP is empty, all of these networks are unknown.
	ForTCP string

	// Trace has functions to call for dials, and for the connections and links that they
	// make. nil means none.
	Trace *Trace

	// Config is for this end of the connections; nil means the defaults.
	Config *Config
}

// Dial connects to an address on the named network:
//
//   - auto, auto4, auto6: the net.Conn is an *[AutoConn].
//   - rdma, rdma4, rdma6, shm: it is a *[Conn], or an *AutoConn for [Dialer].ForTCP.
//
// The address has the form "host:port", as for net.Dial. The host is a name or an IP address,
// with a zone where it needs one; without a host it is this host. The port is a number or the
// name of a service. Dial returns when the listener has accepted the connection in the
// background; its program need not have called Accept.
//
// The caller closes the connection. The error is a *net.OpError: errors.Is finds
// syscall.ECONNREFUSED where no listener has the address, errors.ErrUnsupported where this
// host cannot use the network, syscall.ENOMEM where memory is short. docs/troubleshoot.md
// has the others.
func Dial(network, address string) (net.Conn, error) {
	return (&Dialer{}).Dial(network, address)
}

// DialTimeout does what Dial does, with a limit on the time: see [Dialer].Timeout.
func DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	return (&Dialer{Timeout: timeout}).Dial(network, address)
}

// Dial connects to the address on the named network. See the function [Dial].
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to the address on the named network. It fails when ctx ends before
// there is a connection; a connection does not depend on ctx. See the function [Dial].
//
// Hooks of net/http/httptrace in ctx are called: ConnectStart and ConnectDone once for each address
// that is dialed, with the network that was asked for, also where the connection begins on a link that
// is up.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	began := time.Now()
	c, err = d.dialNamed(ctx, network, address)
	d.Trace.dialed(network, address, time.Since(began), c, err)
	return c, err
}

// dialNamed connects to the address on the network that the caller asks for.
func (d *Dialer) dialNamed(ctx context.Context, asked, address string) (c net.Conn, err error) {
	network, ours := d.choose(asked)
	if !ours {
		return d.dialOther(ctx, network, address)
	}
	ctx = context.WithValue(ctx, askedKey{}, asked)
	var addr net.Addr
	n, ok := networks[network]
	n = n.here()
	switch {
	case !ok:
		if err = unknownNetwork(network); network != asked {
			err = fmt.Errorf("Dialer.ForTCP is %q, which does not go with %s: %w", d.ForTCP, asked, err)
		}
	case n.carrier == overAuto:
		c, addr, err = d.dialAuto(ctx, n, address)
		countDial(n.name, c, err)
	default:
		c, addr, err = d.dial(ctx, n, address)
		countDial(n.name, c, err)
	}
	if err != nil {
		c, err = nil, opError("dial", network, d.LocalAddr, addr, contextError(err))
	} else if one, ok := c.(*Conn); ok && network != asked {
		c = newAutoConn(one, nil)
	}
	return c, err
}

// choose returns the network to dial when the caller asks for the named one. If ours is
// false, package net dials it. Without ForTCP all networks are ours, known or not.
func (d *Dialer) choose(network string) (_ string, ours bool) {
	if _, known := networks[network]; known || d.ForTCP == "" {
		return network, true
	}
	if digit, ok := strings.CutPrefix(network, "tcp"); ok && (digit == "" || digit == "4" || digit == "6") {
		return d.ForTCP + digit, true
	}
	return network, false
}

// dialOther has package net dial, and adds this package's networks to its error for an
// unknown one.
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

// dial connects to the address on a network of one fabric. If it fails it also returns at
// which of the addresses that the name has.
func (d *Dialer) dial(ctx context.Context, n network, address string) (*Conn, net.Addr, error) {
	if err := d.Config.Validate(); err != nil {
		return nil, nil, err
	}
	local, remotes, err := d.resolve(ctx, n, address)
	if err != nil {
		return nil, nil, err
	}
	if remotes, err = matching(remotes, local.Addr(), address); err != nil {
		return nil, nil, err
	}
	f, err := n.open(d.TrustUser, d.Config)
	if err != nil {
		return nil, nil, err
	}
	return inTurn(ctx, n.name, remotes, func(ctx context.Context, remote netip.AddrPort) (*Conn, error) {
		return d.dialPatiently(ctx, n, f, local, remote, unproven{autoTimes.Answer})
	})
}

// resolve returns the address to dial from, and those to dial in the order to try them.
func (d *Dialer) resolve(ctx context.Context, n network, address string) (local netip.AddrPort, remotes []netip.AddrPort, err error) {
	if local, err = hostport.LocalAddrPort(d.LocalAddr); err != nil {
		return local, nil, err
	}
	remotes, err = n.family.Resolve(ctx, cmp.Or(d.Resolver, net.DefaultResolver), "tcp", address, n.family.Loopback())
	return local, remotes, err
}

// inTurn dials addresses one after the other until one connects. If all fail, it returns the
// first one and its error.
func inTurn[C any](ctx context.Context, network string, remotes []netip.AddrPort,
	dial func(context.Context, netip.AddrPort) (C, error)) (none C, first net.Addr, err error) {
	for i, remote := range remotes {
		if ended := ctx.Err(); ended != nil {
			if err == nil {
				first, err = rconn.NewAddr(network, remote), ended
			}
			break
		}
		shared, cancel := share(ctx, len(remotes)-i)
		c, failed := traceConnect(shared, remote, dial)
		cancel()
		if failed == nil {
			return c, nil, nil
		}
		if err == nil {
			first, err = rconn.NewAddr(network, remote), failed
		}
	}
	return none, first, err
}

// share limits ctx to an equal share of the time that it has left, for one of the given
// number of addresses, but to 2 s at least, as package net does.
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
