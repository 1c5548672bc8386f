// Package rdmaudp sends and receives datagrams over RoCE, by queue pairs of type UD: unreliable,
// in one packet each, to one receiver or to a multicast group.
//
//	c, err := rdmaudp.Listen("rdma-udp", ":8080")
//	c, err := rdmaudp.Dial("rdma-udp", "10.0.0.1:8080")
//
// The networks are "rdma-udp", "rdma-udp4" (IPv4 alone) and "rdma-udp6". Both ends have to use
// this package. It needs what the network "rdma" of package ringnet needs, and a device with
// RoCE: over InfiniBand the error wraps errors.ErrUnsupported. Ports are separate from UDP's and
// from those of ringnet's connections.
//
// A [PacketConn] is a net.PacketConn and a net.Conn, and has ReadFromUDPAddrPort and
// WriteToUDPAddrPort as a *net.UDPConn, and ReadBatch and WriteBatch as golang.org/x/net/ipv4 has
// them. Its addresses are of type [Addr], and it sends to
// *net.UDPAddr, too. README.md lists the differences from UDP, and protocol.md what is on the
// wire.
//
// A datagram arrives whole or not at all, and never before an earlier one from the same sender
// to the same address. It has at most [PacketConn.MaxMessage] bytes: the MTU of the device's port
// less 8, which is 1016 where Ethernet's MTU is 1500. A longer one fails with syscall.EMSGSIZE,
// for nothing is sent in fragments.
//
// A datagram is lost when its receiver has no room for it, or the network loses it. A receiver
// has room for 256 unread datagrams, 1 MiB, from all senders together, for each port of a device
// that the address belongs to; [PacketConn.SetReadBuffer] changes that. It is pinned memory, which
// counts within the limit of [ringnet.SetMemoryLimit]. [Stats] counts what was lost, at both ends.
//
// A Write does not wait for the receiver. The first datagram to an address is sent when its
// receiver has been found, well under a millisecond later. Close waits for that, a second at
// most; a program that exits without Close may exit before. Close also tells those who send to
// the PacketConn, so that their next datagrams go to the next owner of the address.
//
// [ListenMulticast] and [PacketConn.JoinGroup] receive what is sent to a group: a multicast
// address of IPv4 and a port, to which any PacketConn may send. A member has a separate queue for
// each group.
package rdmaudp
