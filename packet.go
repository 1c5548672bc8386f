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

// PacketConn sends and receives datagrams: it is a net.PacketConn and a net.Conn.
// [ListenPacket] and [ListenMulticast] return one, and so does [Dial] on the same networks.
// Its methods may be called by several goroutines at once; each datagram goes to one of the
// reads. Package [pconn] documents them in full, with the errors that they return:
//
//   - [pconn.Conn.ReadFrom], [pconn.Conn.ReadFromUDPAddrPort]: the next datagram and its
//     sender. Bytes for which the slice has no room are lost.
//   - [pconn.Conn.Read]: the next datagram alone.
//   - [pconn.Conn.WriteTo], [pconn.Conn.WriteToUDPAddrPort]: send to an address. They do not
//     wait for the receiver.
//   - [pconn.Conn.Write]: send to the address that was dialed.
//   - [pconn.Conn.ReadBatch], [pconn.Conn.WriteBatch]: several datagrams, each a [Message].
//   - [pconn.Conn.MaxMessage]: how many bytes a datagram may have.
//   - [pconn.Conn.SetReadBuffer]: how many bytes wait to be read; the default is 1 MiB, which is
//     256 datagrams.
//   - [pconn.Conn.SetWriteBuffer]: nothing, as there is no write buffer.
//   - [pconn.Conn.SetDeadline], [pconn.Conn.SetReadDeadline], [pconn.Conn.SetWriteDeadline]: as
//     in package net.
//   - [pconn.Conn.JoinGroup], [pconn.Conn.LeaveGroup]: receive what is sent to a multicast
//     group, or no longer.
//   - [pconn.Conn.LocalAddr], [pconn.Conn.RemoteAddr]: an [Addr]; RemoteAddr is nil unless the
//     PacketConn was dialed.
//   - [pconn.Conn.Stats]: a [PacketStats]. Lost datagrams show there, and in no error.
//   - [pconn.Conn.Close]: ends all calls with net.ErrClosed, and waits a second at most for
//     datagrams that were written and whose receivers are still being looked for.
type PacketConn = pconn.Conn

// PacketStats counts what a [PacketConn] has done since it was made. Nothing resets the
// counts. Datagrams and their bytes:
//
//	Sent, BytesSent           that have left this end
//	Received, BytesReceived   that were read
//
// Datagrams that were lost, as far as this end can know:
//
//	Missed       sent to this end but not read, as gaps in the sequence numbers show;
//	             most often they were not read in time
//	Refused      sent, but the receiver had no room, or refused this sender
//	Unreachable  not sent: no receiver was found at the address
//	Dropped      not sent: too many waited while their receiver was looked for
//	Foreign      received but not from a ringnet sender, or not from the address dialed
//
// Package [pconn] says which of these each network can tell: see [pconn.Stats].
type PacketStats = pconn.Stats

// Message is one datagram of [pconn.Conn.ReadBatch] and [pconn.Conn.WriteBatch]. It has the
// fields of ipv4.Message and ipv6.Message of golang.org/x/net:
//
//	Buffers  [][]byte  the datagram's bytes, or room for them, in one or more pieces
//	Addr     net.Addr  who sent it, or is to get it; nil for the address dialed
//	N        int       how many bytes were read or written
//	Flags    int       after ReadBatch: MSG_TRUNC of recvmsg(2) if Buffers had too little room
//	OOB, NN            not used
type Message = pconn.Message

// packetNetworks are the networks of datagrams.
var packetNetworks = map[string]network{
	"shm-udp":   {"shm-udp", "ip", openSHM},
	"rdma-udp":  {"rdma-udp", "ip", openRDMA},
	"rdma-udp4": {"rdma-udp", "ip4", openRDMA},
	"rdma-udp6": {"rdma-udp", "ip6", openRDMA},
}

// ListenPacket listens for datagrams at an address of the named network: "rdma-udp",
// "rdma-udp4", "rdma-udp6" or "shm-udp". The address has the form "host:port", as for
// net.ListenPacket. Without a host it means all addresses of this machine. Port 0 means a
// free one; LocalAddr tells which. For a multicast address use [ListenMulticast]. The
// net.PacketConn is a *[PacketConn]. The error is a *net.OpError.
func ListenPacket(network, address string) (net.PacketConn, error) {
	return (&ListenConfig{}).ListenPacket(context.Background(), network, address)
}

// ListenPacket listens for datagrams. ctx limits how long the address may take to be
// resolved. Of the options it uses TrustUser, for senders and for receivers of other users,
// and Config.TrafficClass, for the datagrams that are sent. See the function [ListenPacket].
func (lc *ListenConfig) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	c, addr, err := lc.listenPacket(ctx, network, cmp.Or(address, ":0"))
	if err != nil {
		return nil, opError("listen", network, nil, addr, contextError(err))
	}
	return c, nil
}

// listenPacket listens. If it fails it also returns the address at which.
func (lc *ListenConfig) listenPacket(ctx context.Context, network, address string) (*PacketConn, net.Addr, error) {
	n, ok := packetNetworks[network]
	if !ok {
		return nil, nil, unknownNetwork(network)
	}
	addr, err := n.resolveLocal(ctx, address)
	if err != nil {
		return nil, nil, err
	}
	at := rconn.NewAddr(n.name, addr)
	f, err := openDatagrams(n, lc.TrustUser, lc.Config)
	if err != nil {
		return nil, at, err
	}
	c, err := pconn.Listen(f, pconn.Options{Network: n.name, Local: n.listenOn(addr)})
	return c, at, err
}

// ListenMulticast returns a PacketConn that has joined a multicast group: an address such as
// "239.1.2.3:4567". ifi is the interface of this host at which it receives; nil means the
// interface by which this host sends to the group. Any number of PacketConns may join one
// group, also on one host.
//
// The LocalAddr of the PacketConn is not the group's address. It alone receives what is sent
// there, and what it sends comes from there, by ifi if that is not nil. To join further
// groups use [pconn.Conn.JoinGroup]. Networks and errors are those of [ListenPacket].
func ListenMulticast(network string, ifi *net.Interface, group string) (*PacketConn, error) {
	return (&ListenConfig{}).ListenMulticast(context.Background(), network, ifi, group)
}

// ListenMulticast returns a PacketConn that has joined a group. ctx limits how long the
// address may take to be resolved. It uses the same options as [ListenConfig.ListenPacket].
// See the function [ListenMulticast].
func (lc *ListenConfig) ListenMulticast(ctx context.Context, network string, ifi *net.Interface, group string) (*PacketConn, error) {
	c, addr, err := lc.listenMulticast(ctx, network, ifi, group)
	if err != nil {
		return nil, opError("listen", network, nil, addr, contextError(err))
	}
	return c, nil
}

func (lc *ListenConfig) listenMulticast(ctx context.Context, network string, ifi *net.Interface, group string) (*PacketConn, net.Addr, error) {
	n, ok := packetNetworks[network]
	if !ok {
		return nil, nil, unknownNetwork(network)
	}
	addr, err := n.resolveLocal(ctx, group)
	if err != nil {
		return nil, nil, err
	}
	at := rconn.NewAddr(n.name, addr)
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

// dialPacket returns a PacketConn for the first address that a name has. It sends nothing, as
// package net does not for UDP.
func (d *Dialer) dialPacket(ctx context.Context, n network, address string) (*PacketConn, net.Addr, error) {
	local, remotes, err := d.resolve(ctx, n, address)
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

var errPortZero = errors.New("datagrams cannot be sent to port 0")
