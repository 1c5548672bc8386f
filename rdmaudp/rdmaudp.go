package rdmaudp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/ringnet/ringnet/internal/bubble"
	"github.com/ringnet/ringnet/internal/hostport"
	"github.com/ringnet/ringnet/internal/netns"
	"github.com/ringnet/ringnet/rdmaudp/internal/ud"
)

// networkName is what addresses and errors have as the name of the network.
const networkName = "rdma-udp"

// families has the networks that [Listen] and [Dial] know.
var families = map[string]hostport.Family{
	networkName: "ip",
	"rdma-udp4": "ip4",
	"rdma-udp6": "ip6",
}

// ListenConfig has the options of Listen. The zero ListenConfig means the defaults. It may be
// used by several goroutines at once, and must not change while it is used.
type ListenConfig struct {
	// TrafficClass is what packets are marked with (DSCP and ECN, as IPv4's type of service):
	// 1 to 255, negative for a class of 0; 0 means the system's choice.
	TrafficClass int
}

// Listen listens for datagrams at an address of the named network: "rdma-udp", "rdma-udp4" or
// "rdma-udp6". The address has the form "host:port", as for net.ListenPacket. Without a host it
// means all addresses of this machine that belong to RDMA devices. Port 0 means a free one;
// LocalAddr tells which. For a multicast address use [ListenMulticast]. The error is a
// *net.OpError; errors.Is finds errors.ErrUnsupported where this host has no RoCE, and
// syscall.EADDRINUSE where another PacketConn has the port.
func Listen(network, address string) (*PacketConn, error) {
	return (&ListenConfig{}).Listen(context.Background(), network, address)
}

// Listen listens for datagrams. ctx limits how long the address may take to be resolved. See the
// function [Listen].
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (*PacketConn, error) {
	c, at, err := lc.listen(ctx, network, cmp.Or(address, ":0"))
	if err != nil {
		return nil, opError("listen", network, nil, at, err)
	}
	return c, nil
}

// listen listens. If it fails it also returns the address at which.
func (lc *ListenConfig) listen(ctx context.Context, network, address string) (*PacketConn, net.Addr, error) {
	family, addr, err := resolveLocal(ctx, network, address)
	if err != nil {
		return nil, nil, err
	}
	at := addrOf(addr)
	f, err := openFabric(lc.TrafficClass)
	if err != nil {
		return nil, at, err
	}
	c, err := newPacketConn(f, options{local: family.ListenOn(addr)})
	return c, at, err
}

// ListenMulticast returns a PacketConn that has joined a multicast group: an address such as
// "239.1.2.3:4567". ifi is the interface of this host at which it receives; nil means the
// interface by which this host sends to the group. Any number of PacketConns may join one
// group, also on one host.
//
// The LocalAddr of the PacketConn is not the group's address. It alone receives what is sent
// there, and what it sends comes from there, by ifi if that is not nil. To join further
// groups use [PacketConn.JoinGroup]. Networks and errors are those of [Listen].
func ListenMulticast(network string, ifi *net.Interface, group string) (*PacketConn, error) {
	return (&ListenConfig{}).ListenMulticast(context.Background(), network, ifi, group)
}

// ListenMulticast returns a PacketConn that has joined a group. ctx limits how long the
// address may take to be resolved. See the function [ListenMulticast].
func (lc *ListenConfig) ListenMulticast(ctx context.Context, network string, ifi *net.Interface, group string) (*PacketConn, error) {
	c, at, err := lc.listenMulticast(ctx, network, ifi, group)
	if err != nil {
		return nil, opError("listen", network, nil, at, err)
	}
	return c, nil
}

func (lc *ListenConfig) listenMulticast(ctx context.Context, network string, ifi *net.Interface, group string) (*PacketConn, net.Addr, error) {
	_, addr, err := resolveLocal(ctx, network, group)
	if err != nil {
		return nil, nil, err
	}
	at := addrOf(addr)
	if at.AddrPort().Port() == 0 {
		return nil, at, errPortZero
	}
	local := netip.IPv4Unspecified()
	if at.AddrPort().Addr().Is6() {
		local = netip.IPv6Unspecified()
	}
	if ifi != nil {
		if local, err = cardOf(ifi, at.AddrPort().Addr()); err != nil {
			return nil, at, err
		}
	}
	c, _, err := lc.listen(ctx, network, netip.AddrPortFrom(local, 0).String())
	if err != nil {
		return nil, at, err
	}
	if err := c.JoinGroup(ifi, at); err != nil {
		_ = c.Close()
		return nil, at, errors.Unwrap(err)
	}
	return c, at, nil
}

// Dialer has the options of Dial. The zero Dialer means the defaults. It may be used by several
// goroutines at once, and must not change while it is used.
type Dialer struct {
	// LocalAddr is the address to send from, an [Addr] or a *net.UDPAddr; nil means
	// the one from which this host reaches the remote address, and a free port.
	LocalAddr net.Addr

	// Resolver finds the addresses of names; nil means net.DefaultResolver.
	Resolver *net.Resolver

	// TrafficClass is as in [ListenConfig].
	TrafficClass int
}

// Dial returns a PacketConn that sends to one address, and receives from it alone. It sends
// nothing, and does not look for the receiver, as package net does not for UDP. Networks and
// errors are those of [Listen].
func Dial(network, address string) (*PacketConn, error) {
	return (&Dialer{}).DialContext(context.Background(), network, address)
}

// DialContext returns a PacketConn that sends to one address. ctx limits how long the address
// may take to be resolved. See the function [Dial].
func (d *Dialer) DialContext(ctx context.Context, network, address string) (*PacketConn, error) {
	c, at, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, opError("dial", network, d.LocalAddr, at, err)
	}
	return c, nil
}

// dial connects to the first address that a name has. If it fails it also returns that.
func (d *Dialer) dial(ctx context.Context, network, address string) (*PacketConn, net.Addr, error) {
	family, ok := families[network]
	if !ok {
		return nil, nil, net.UnknownNetworkError(network)
	}
	local, err := hostport.LocalAddrPort(d.LocalAddr)
	if err != nil {
		return nil, nil, err
	}
	remotes, err := family.Resolve(ctx, cmp.Or(d.Resolver, net.DefaultResolver), "udp", address, family.Loopback())
	if err != nil {
		return nil, nil, err
	}
	remote := hostport.PreferIPv4(remotes)
	if remote.Addr().IsUnspecified() {
		remote = netip.AddrPortFrom(family.Loopback(), remote.Port())
	}
	at := addrOf(remote)
	if remote.Port() == 0 {
		return nil, at, errPortZero
	}
	f, err := openFabric(d.TrafficClass)
	if err != nil {
		return nil, at, err
	}
	if !local.Addr().IsValid() || local.Addr().IsUnspecified() {
		source, err := ud.SourceOf(remote)
		if err != nil {
			return nil, at, err
		}
		local = netip.AddrPortFrom(source, local.Port())
	}
	c, err := newPacketConn(f, options{local: local, remote: remote})
	return c, at, err
}

var errPortZero = errors.New("datagrams cannot be sent to port 0")

// openFabric returns the fabric of RDMA devices.
func openFabric(trafficClass int) (ud.Fabric, error) {
	if trafficClass > 255 {
		return nil, fmt.Errorf("TrafficClass is %d: want 1 to 255, 0 for the system's choice, or a negative number for class 0", trafficClass)
	}
	if err := netns.Current().Refuse(); err != nil { // goroutines look for receivers
		return nil, err
	}
	if err := bubble.RefuseRDMA(); err != nil {
		return nil, err
	}
	return ud.Open(trafficClass)
}

// resolveLocal returns the address to listen at, and the family of the network.
func resolveLocal(ctx context.Context, network, address string) (family hostport.Family, at netip.AddrPort, err error) {
	family, ok := families[network]
	if !ok {
		return "", at, net.UnknownNetworkError(network)
	}
	at, err = family.ResolveLocal(ctx, "udp", address)
	return family, at, err
}

func opError(op, network string, source, addr net.Addr, err error) error {
	return &net.OpError{Op: op, Net: network, Source: source, Addr: addr, Err: err}
}
