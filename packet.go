package ringnet

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/ringnet/ringnet/internal/autoudp"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/netns"
	"github.com/ringnet/ringnet/internal/pconn"
)

// PacketConn sends and receives datagrams: it is a net.PacketConn and a net.Conn.
// [ListenPacket] and [ListenMulticast] return one, and so does [Dial] on the same networks.
// Any goroutines may call its methods at the same time; one Read returns each datagram. Package
// [pconn] documents the methods:
//
//	ReadFrom, WriteTo, Close, LocalAddr                of a net.PacketConn
//	SetDeadline, SetReadDeadline, SetWriteDeadline     of a net.PacketConn
//	Read, Write, RemoteAddr                            of a net.Conn
//	ReadFromUDPAddrPort, WriteToUDPAddrPort            of a *net.UDPConn
//	SetReadBuffer, SetWriteBuffer                      of a *net.UDPConn
//	ReadBatch, WriteBatch                              several datagrams, each a Message
//	JoinGroup, LeaveGroup                              of multicast groups
//	MaxMessage, Stats                                  the longest datagram; a PacketStats
//
// A datagram may be lost, and is lost if its receiver has no room for it. No write waits for
// that room, or fails for want of it: Stats counts what was lost. A datagram that arrives is
// whole. Datagrams from one sender to one address do not overtake each other. Those to different
// addresses may: the first to each waits until the PacketConn has found its receiver.
//
// Errors are *net.OpError, as package net's are. With errors.Is: os.ErrDeadlineExceeded when a
// deadline has passed; net.ErrClosed after Close; syscall.EMSGSIZE for a datagram of more than
// MaxMessage bytes; syscall.EINVAL for an address that is not of an IP network; *net.AddrError for
// an IPv6 address if the PacketConn listens at an IPv4 address, and the other way round;
// net.ErrWriteToConnected for WriteTo on a PacketConn that was dialed, and syscall.EDESTADDRREQ for
// Write, and for a [Message] without Addr, on one that was not.
//
// If datagrams written on a PacketConn that was dialed do not reach their receiver, and it knows
// why, one of the next calls fails: with syscall.ECONNREFUSED if there was no receiver; with
// *[RefusedError], which wraps that, if the receiver refused the sender and gave a reason, that it
// has no memory for another, for example; with syscall.EHOSTUNREACH if no answer came within five
// seconds. All calls fail with syscall.ENETDOWN once the device of a PacketConn that listens at one
// address has been removed; one that listens at all addresses goes on with the other devices, and
// with new ones.
type PacketConn = pconn.Conn

// PacketStats counts what a [PacketConn] has done since it was made, all uint64:
//
//	Sent, Received             datagrams that have left, and that were read
//	BytesSent, BytesReceived   bytes of those, without headers, with those that a Read had no
//	                           room for
//	Missed                     datagrams to this end that have not arrived
//	Refused                    datagrams that the receiver had no room for, or did not admit
//	Unreachable                datagrams to an address at which no receiver was found
//	Dropped                    datagrams for which there was no room while their receiver was
//	                           being looked for
//	Foreign                    datagrams that were not ringnet's, or not from the address dialed
//	ByUDP                      of Sent on auto-udp, those that went by UDP
//
// Missed are most often datagrams that were not read in time. The sequence number of the next
// datagram from the same sender shows how many are missing; until it arrives they are not counted.
//
// Refused are datagrams that the receiver had no room for, where the network reports that: over
// shm all but those to groups, over rdma those that are longer than the MTU of the receiver's port
// allows. The receiver counts them as Missed. Refused are also datagrams whose receiver did not
// admit this end as a sender: it does not trust it, or had no room or no memory for it within five
// seconds. The receiver does not count these.
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

// ListenPacket listens for datagrams at an address of the named network: "rdma-udp",
// "rdma-udp4", "rdma-udp6", "shm-udp", or "auto-udp", "auto-udp4" or "auto-udp6", which stands for
// the better of shm-udp and rdma-udp that leads to the process that UDP leads to, and else for UDP;
// either end may be a program that has only UDP. The address has the form "host:port", as for
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
	n, err := lookup(network, true)
	if err != nil {
		return nil, nil, err
	}
	addr, err := n.resolveLocal(ctx, address)
	if err != nil {
		return nil, nil, err
	}
	at := fabric.NewAddr(n.name, addr)
	f, err := openDatagrams(n, lc.TrustUser, lc.Config)
	if err != nil {
		return nil, at, err
	}
	c, err := pconn.Listen(f, pconn.Options{Network: n.name, Addr: n.packetAddr(), Local: n.listenOn(addr)})
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
	n, err := lookup(network, true)
	if err != nil {
		return nil, nil, err
	}
	addr, err := n.resolveLocal(ctx, group)
	if err != nil {
		return nil, nil, err
	}
	at := fabric.NewAddr(n.name, addr)
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
	elsewhere := netns.Current().Refuse() // goroutines look for receivers
	if n.carrier == datagramsOverAuto {
		var f autoudp.Fabric
		for _, carrier := range []*carrier{datagramsOverSHM, datagramsOverRDMA} {
			if c, err := carrier.open(trust, cfg); err == nil && elsewhere == nil {
				f.Carriers = append(f.Carriers, autoudp.Carrier{Name: carrier.name, Datagrams: c.(fabric.Datagrams)})
			}
		}
		return &f, nil
	}
	f, err := n.open(trust, cfg)
	if err = cmp.Or(elsewhere, err); err != nil {
		return nil, err
	}
	return f.(fabric.Datagrams), nil
}

// packetAddr is how PacketConns of the network return addresses; nil: as an Addr.
func (n network) packetAddr() func(netip.AddrPort) net.Addr {
	if n.carrier != datagramsOverAuto {
		return nil
	}
	return func(a netip.AddrPort) net.Addr { return net.UDPAddrFromAddrPort(a) }
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
	at := fabric.NewAddr(n.name, remote)
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
	c, err := pconn.Listen(f, pconn.Options{Network: n.name, Addr: n.packetAddr(), Local: local, Remote: remote})
	return c, at, err
}

var errPortZero = errors.New("datagrams cannot be sent to port 0")
