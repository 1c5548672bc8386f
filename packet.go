package ringnet

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/pconn"
	"github.com/ringnet/ringnet/rconn"
)

// PacketConn sends and receives datagrams; what ListenPacket returns is one, and what
// Dial returns on the same networks. See package pconn for its methods.
type PacketConn = pconn.Conn

// PacketStats counts what a PacketConn has done.
type PacketStats = pconn.Stats

// Message is a datagram of PacketConn's ReadBatch and WriteBatch. It has the fields of
// ipv4.Message and ipv6.Message of golang.org/x/net.
type Message = pconn.Message

// packetNetworks are the networks of datagrams.
var packetNetworks = map[string]network{
	"shm-udp":   {"shm-udp", "ip", openSHM},
	"rdma-udp":  {"rdma-udp", "ip", openRDMA},
	"rdma-udp4": {"rdma-udp", "ip4", openRDMA},
	"rdma-udp6": {"rdma-udp", "ip6", openRDMA},
}

// ListenPacket announces on the address of a network of datagrams: "rdma-udp",
// "rdma-udp4", "rdma-udp6" or "shm-udp". The address has the form "host:port", as for
// net.ListenPacket: without a host it is all addresses of this machine, and port 0 means a
// free one, which LocalAddr tells. A multicast address is for [ListenMulticast]. The
// net.PacketConn is a *[PacketConn]. The error is a *net.OpError.
func ListenPacket(network, address string) (net.PacketConn, error) {
	return (&ListenConfig{}).ListenPacket(context.Background(), network, address)
}

// ListenPacket announces on the address of a network of datagrams. ctx is for resolving
// the address. Of the options, TrustUser counts, for those who send and those who are
// sent to, and of Config the TrafficClass of what is sent. See the function [ListenPacket].
func (lc *ListenConfig) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	c, addr, err := lc.listenPacket(ctx, network, cmp.Or(address, ":0"))
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: addr, Err: contextError(err)}
	}
	return c, nil
}

// listenPacket announces, or says what went wrong at which address.
func (lc *ListenConfig) listenPacket(ctx context.Context, network, address string) (*PacketConn, net.Addr, error) {
	n, ok := packetNetworks[network]
	if !ok {
		return nil, nil, unknownNetwork(network)
	}
	addrs, err := n.resolve(ctx, net.DefaultResolver, address, n.wildcard())
	if err != nil {
		return nil, nil, err
	}
	addr := preferIPv4(addrs)
	at := rconn.NewAddr(n.name, addr)
	f, err := openDatagrams(n, lc.TrustUser, lc.Config)
	if err != nil {
		return nil, at, err
	}
	c, err := pconn.Listen(f, pconn.Options{Network: n.name, Local: n.listenOn(addr)})
	return c, at, err
}

// ListenMulticast returns a PacketConn that has joined a group, an address of the form
// "239.1.2.3:4567", at an interface of this host: nil means the one that datagrams to the
// group are sent from. Any number of them may listen on the same group, of one host, too.
// Its LocalAddr is another than the group's: what is sent there is for it alone, and what it
// sends comes from there, by the given interface if there is one. See
// [PacketConn.JoinGroup] for more groups, and [ListenPacket] for networks and errors.
func ListenMulticast(network string, ifi *net.Interface, group string) (*PacketConn, error) {
	return (&ListenConfig{}).ListenMulticast(context.Background(), network, ifi, group)
}

// ListenMulticast returns a PacketConn that has joined a group. ctx is for resolving the
// address, and the options count as for [ListenConfig.ListenPacket]. See the function
// [ListenMulticast].
func (lc *ListenConfig) ListenMulticast(ctx context.Context, network string, ifi *net.Interface, group string) (*PacketConn, error) {
	c, addr, err := lc.listenMulticast(ctx, network, ifi, group)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: addr, Err: contextError(err)}
	}
	return c, nil
}

func (lc *ListenConfig) listenMulticast(ctx context.Context, network string, ifi *net.Interface, group string) (*PacketConn, net.Addr, error) {
	n, ok := packetNetworks[network]
	if !ok {
		return nil, nil, unknownNetwork(network)
	}
	addrs, err := n.resolve(ctx, net.DefaultResolver, group, n.wildcard())
	if err != nil {
		return nil, nil, err
	}
	at := rconn.NewAddr(n.name, preferIPv4(addrs))
	if at.AddrPort().Port() == 0 {
		return nil, at, errPortZero
	}
	local := netip.IPv4Unspecified()
	if at.AddrPort().Addr().Is6() {
		local = netip.IPv6Unspecified()
	}
	if ifi != nil {
		if local, err = pconn.CardOf(ifi, at.AddrPort().Addr()); err != nil {
			return nil, at, err
		}
	}
	c, _, err := lc.listenPacket(ctx, network, netip.AddrPortFrom(local, 0).String())
	if err != nil {
		return nil, at, err
	}
	if err := c.JoinGroup(ifi, at); err != nil {
		_ = c.Close()
		return nil, at, errors.Unwrap(err)
	}
	return c, at, nil
}

// openDatagrams returns the fabric of a network.
func openDatagrams(n network, trust trustUser, cfg *Config) (fabric.Datagrams, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	f, err := n.open(trust, cfg)
	if err != nil {
		return nil, err
	}
	return f.(fabric.Datagrams), nil
}

// dialPacket returns a PacketConn for the first address that a name has, as package net
// does for UDP: nobody is asked.
func (d *Dialer) dialPacket(ctx context.Context, n network, address string) (*PacketConn, net.Addr, error) {
	local, err := addrPort(d.LocalAddr)
	if err != nil {
		return nil, nil, err
	}
	remotes, err := n.resolve(ctx, cmp.Or(d.Resolver, net.DefaultResolver), address, n.loopback())
	if err != nil {
		return nil, nil, err
	}
	remote := preferIPv4(remotes)
	if remote.Addr().IsUnspecified() {
		remote = netip.AddrPortFrom(n.loopback(), remote.Port())
	}
	at := rconn.NewAddr(n.name, remote)
	if remote.Port() == 0 {
		return nil, at, errPortZero
	}
	f, err := openDatagrams(n, d.TrustUser, d.Config)
	if err != nil {
		return nil, at, err
	}
	if !local.Addr().IsValid() || local.Addr().IsUnspecified() {
		source, err := f.Source(remote)
		if err != nil {
			return nil, at, err
		}
		local = netip.AddrPortFrom(source, local.Port())
	}
	c, err := pconn.Listen(f, pconn.Options{Network: n.name, Local: local, Remote: remote})
	return c, at, err
}

var errPortZero = errors.New("a datagram needs a port to go to")
