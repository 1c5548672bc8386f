// Package ringnet is package net over RDMA. Dial and Listen return a net.Conn and a
// net.Listener whose bytes go over RoCE or InfiniBand, past the kernels of both hosts;
// between processes of one host over shared memory; and over TCP where there is
// neither. Code written against package net (net/http, gRPC, crypto/tls, database
// drivers) runs unchanged:
//
//	l, err := ringnet.Listen("auto", ":8080") // was net.Listen("tcp", ":8080")
//	http.Serve(l, handler)
//
//	conn, err := ringnet.Dial("auto", "10.0.0.1:8080") // was net.Dial("tcp", …)
//
// # Networks
//
//	auto   the best that both sides have: shm, then rdma, then plain TCP
//	auto4  the same, IPv4 only
//	auto6  the same, IPv6 only
//	rdma   rdma_cm over an RDMA device, IPv4 or IPv6
//	rdma4  the same, IPv4 only
//	rdma6  the same, IPv6 only
//	shm    shared memory, to a peer on this host; no hardware
//
// and for datagrams, see below:
//
//	rdma-udp   unreliable datagrams (UD) over a RoCE device, IPv4 or IPv6
//	rdma-udp4  the same, IPv4 only
//	rdma-udp6  the same, IPv6 only
//	shm-udp    shared memory, between processes of this host
//
// An address is host:port, with names of hosts and services as in package net. The
// network that carries a connection is LocalAddr().Network().
//
// # auto
//
// A listener accepts shm, rdma and TCP on one port, and a dialer takes the best of
// them that answers. It connects with the process that TCP would have connected it
// with, through port mappings, service addresses and packet filters, and at most a
// quarter of a second later than TCP would. It takes a link only with a TCP connection
// that proves that the link leads to the same listener; connections that begin later on
// the link need no proof. A peer without ringnet sees TCP as ever.
//
// [AutoConn.PassedOver] has the reasons why no better network carries a connection,
// with a [ReasonCode] for metrics. auto does not try a network again for a minute that
// has failed for an address to which TCP connects.
//
// The environment variable RINGNET_NETWORKS, such as "shm,tcp", lists the networks that
// auto uses, in the order to try them. Without tcp in it, and with [Dialer.Require], a
// dial fails where it would have fallen back. docs/auto.md has the details.
//
// # Libraries that dial for themselves
//
// Most ask their dialer for "tcp". [Dialer.ForTCP] is the network that they get:
//
//	dialer := &ringnet.Dialer{ForTCP: "auto"}
//	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
//
// README.md has the line for gRPC, go-redis, pgx, NATS and MongoDB. Programs that
// cannot be changed go through the command: docs/command.md.
//
// # rdma
//
// rdma needs Linux, an RDMA device with an IP address on its network interface, a build
// with cgo, and the libraries libibverbs.so.1 and librdmacm.so.1 (Debian: libibverbs1,
// librdmacm1, ibverbs-providers), which are loaded at the first use. Without one of
// these, the error of Dial and Listen names what is missing, and
// errors.Is(err, errors.ErrUnsupported) holds. Memory that connections use is pinned,
// so the limit on locked memory (ulimit -l, LimitMEMLOCK=) must allow it: 1.3 MB for a
// link, and 16 KiB to 1 MiB for each connection on it, see [Config].
//
// Devices may write to that memory in another order than the bytes arrived in (PCI's
// relaxed ordering), where the device, the library and the kernel can: many hosts reach
// their bandwidth only so. Where it is slower instead, the environment variable
// RINGNET_RELAXED_ORDERING=off switches it off.
//
// # shm
//
// Both ends are processes of one host, or one process, on Linux, in one network
// namespace. Addresses are IP addresses of this host, in a port space of their own. Both
// processes have to be of the same user, or the listener root's; [Dialer.TrustUser] and
// [ListenConfig.TrustUser] admit others.
//
// # Datagrams
//
// [ListenPacket], and Dial on the same networks, return a [PacketConn]: a
// net.PacketConn, and a net.Conn, with ReadFromUDPAddrPort and WriteToUDPAddrPort of package
// net's UDPConn, and ReadBatch and WriteBatch as golang.org/x/net/ipv4 has them. Its
// addresses are of type [Addr], and it sends to a *net.UDPAddr as well. Ports are apart from
// those of connections, as UDP's are from TCP's. docs/migrate.md lists what else differs
// from UDP.
//
// A datagram has at most [PacketConn].MaxMessage bytes: 4088 over shm, over rdma the MTU of
// the device's port less 8, which is 1016 where that of Ethernet is 1500. A longer one is
// syscall.EMSGSIZE; nothing is ever sent in fragments. It arrives whole, behind those that the
// sender has written to the same address before, or not at all: it is lost if its receiver
// has no room for it. A receiver has a queue of 256 ([PacketConn].SetReadBuffer), over shm for
// each sender, so that one that floods is in no other's way and nothing else is lost while
// both processes live. That is 1 MiB of the receiver's memory for each sender, and a sender
// for which there is no more ([SetMemoryLimit]) is refused. Over rdma the queue is for all
// senders, 1 MiB of pinned memory for each port that the address belongs to, and the network
// may lose datagrams. [PacketStats] counts what was lost, at both ends.
//
// Writes do not wait for the receiver. What is written to an address for the first time is
// sent when its receiver has been found, in well under a millisecond: a program that ends
// before it calls Close, which waits for that, may end before. Close has those who send to
// the PacketConn look for another at its address, and waits a second at most for them to know.
//
// [ListenMulticast], and [PacketConn].JoinGroup, receive what is sent to a group: a multicast
// address and a port, to which any PacketConn may write. Members have a queue for each group
// that they have joined. Over rdma groups are of IPv4; over shm they are of one host and
// network namespace, whatever the interface, with a queue for each sender and at most 256
// members.
//
// # What is as in package net, and what is not
//
// Deadlines, half-closes and linger behave as documented in package net; connections may
// be used by several goroutines at once; Dial succeeds before the peer calls Accept.
// Errors are a *net.OpError around the errnos that TCP gives, and io.EOF is bare.
// docs/troubleshoot.md has every error, its cause and its cure.
//
// Two things differ: [Conn.Close] waits, and a connection that ends without the peer
// having closed it is always ECONNRESET, never io.EOF, so a truncated stream cannot be
// mistaken for a whole one.
//
// Connections do not implement syscall.Conn, for no descriptor carries their bytes.
//
// # Close
//
// Close returns when the peer's device has everything that was written, which takes
// about one round trip; the peer's application need not have read it. It gives up after
// [Config].Linger, 10 s by default, with ETIMEDOUT: the peer's host has lost power, say,
// its process is stopped, or the network is out for longer than that. What the peer has
// not got by then is lost, and it reads ECONNRESET. The time that one Close has waited in
// vain counts for the others of that link, so closing all takes no longer than closing
// one; connections that are not closed wait on, for ResumeTimeout. A host that has been
// given up is not waited for.
//
// Close and Shutdown of an http.Server close connections one after the other, with a
// mutex held that accepting and serving need, and drop these errors. So both wait for
// each link to a host that is gone, and Shutdown notices the end of its context only
// afterwards. A shorter Linger in the listener's Config bounds that.
//
// # Links
//
// The connections from one process to an address of another share a link: a queue
// pair, a completion queue and a goroutine. The first connection makes it, the others
// begin on it in one round trip, and it stays for a while after the last
// ([Config.LinkIdle], [CloseIdleLinks]). A process with 16 processors or more has
// further links when there are many connections ([Config.Links]). Connections whose
// Configs differ have different links, and [Config.Dedicated] gives a connection one of
// its own.
//
// When a link loses its queue pair and both processes live, the cable is out, say, its
// connections wait, for 30 s by default, and go on over another ([Config.ResumeTimeout]).
// When it dies, all its connections end.
//
// # Memory
//
// What links and PacketConns register, for a device or to share it, stays within a limit
// of the process, see [SetMemoryLimit]. A connection begins with a ring of 16 KiB, which
// grows while it is busy and there is memory, and shrinks when it is idle
// ([Config.RecvBuffer], [Config.LinkIdle]). Where memory is short, rings first stop to
// grow, then idle links end and idle rings shrink, and then Dial fails with an error
// that has the figures and for which errors.Is(err, syscall.ENOMEM) holds, or
// ECONNREFUSED if it is the peer's memory.
//
// # Fewer copies and calls
//
// io.Copy of a regular file to or from a connection spares a copy. [AutoConn.WriteBuffers]
// and Conn.WriteBuffers are net.Buffers as one Write. Conn.Peek returns what has arrived
// where it lies in the ring, which the peer can still change; its documentation has what
// that is good for. A [Buffer] is memory that a program fills and hands over, from which
// the device sends without a copy.
//
// # What happens, and how much
//
// [Stats] counts what a connection has done, [ListenerStats] a listener and [Totals] the
// process, over each network, TCP included. [Links] lists the links that are up, and
// [Memory] what they use. A [Trace] in a [Dialer] or a [ListenConfig] has functions that
// are called when a connection was dialed, accepted or closed, and when a link comes up
// or goes down. The module metrics has all of it for Prometheus and expvar.
//
// # Security
//
// RDMA and shm bypass packet filters and port mappings that act on TCP, and do not
// encrypt. Identity and secrecy are crypto/tls's business, which runs on top as over
// TCP. docs/security.md lists who may connect, and what peers and their neighbours can
// and cannot do.
//
// [Conn], [Config], [Addr], [LinkInfo] and [Stats] are package rconn's, whose
// documentation has their methods and fields.
package ringnet
