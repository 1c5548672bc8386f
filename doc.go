// Package ringnet is package net over RDMA. Dial returns a net.Conn and Listen returns a
// net.Listener. Between hosts their bytes go over RoCE or InfiniBand, past the kernels of both;
// between processes of one host they go through shared memory; and where neither is available
// they go over TCP. Code written against package net (net/http, gRPC, crypto/tls, database
// drivers) runs unchanged:
//
//	l, err := ringnet.Listen("auto", ":8080") // was net.Listen("tcp", ":8080")
//	http.Serve(l, handler)
//
//	conn, err := ringnet.Dial("auto", "10.0.0.1:8080") // was net.Dial("tcp", …)
//
// # Networks
//
// The first argument of Dial and Listen names a network:
//
//	auto   the best network that both sides have: shm, else rdma, else plain TCP
//	auto4  the same, IPv4 only
//	auto6  the same, IPv6 only
//	rdma   rdma_cm over an RDMA device, IPv4 or IPv6
//	rdma4  the same, IPv4 only
//	rdma6  the same, IPv6 only
//	shm    shared memory, to a process of this host; needs no hardware
//
// Addresses are host:port, with names of hosts and services as in package net. The network that
// carries a connection is what its method Carrier returns. Dial and Accept return
//
//   - a *[Conn] on rdma and shm,
//   - an *[AutoConn] on auto, which wraps a *Conn or, over TCP, a *net.TCPConn,
//
// [Conn], [Buffer], [Addr], [Stats] and [LinkInfo] are types of package rconn, whose documentation
// has each method and field: go doc github.com/ringnet/ringnet/rconn LinkInfo. Datagrams
// are in a module of their own, github.com/ringnet/ringnet/rdmaudp.
//
// # auto
//
// A listener on auto accepts shm, rdma and TCP on one port. A dialer takes the best network on
// which the listener answers, and always reaches the process that TCP would have reached, also
// where port mappings, service addresses or packet filters decide which process that is. To be
// sure of that, it opens a TCP connection for each new link (see Links below). The listener
// closes this connection without a byte, which proves that the link leads to the same listener.
// Further connections on the link need no proof. A dial takes at most a quarter of a second
// longer than over TCP alone. A peer that does not use ringnet sees ordinary TCP connections.
//
// [AutoConn.PassedOver] returns the reasons why no better network carries a connection, each
// with a [ReasonCode] for programs and metrics. When a network fails for an address to which
// TCP connects, auto does not ask that network again for a minute.
//
// The environment variable RINGNET_NETWORKS, such as "shm,tcp", lists the networks that auto
// uses, in the order to try them. Where it leaves out tcp, and where [Dialer].Require is set, a
// dial fails instead of falling back to TCP. docs/auto.md has the details.
//
// # Libraries that dial for themselves
//
// Most libraries ask the dialer that they are given for "tcp". [Dialer].ForTCP names the network
// that they get instead:
//
//	dialer := &ringnet.Dialer{ForTCP: "auto"}
//	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
//
// docs/migrate.md has the line for gRPC, go-redis, pgx, NATS, MongoDB and MySQL. A program that cannot be
// changed can use the command ringnet proxy: see docs/command.md.
//
// # rdma
//
// rdma needs Linux; an RDMA device whose network interface has an IP address; a build with cgo;
// and the libraries libibverbs.so.1 and librdmacm.so.1 (Debian: libibverbs1, librdmacm1,
// ibverbs-providers), which the first use loads. Where one of these is missing, the error of
// Dial and Listen names it, and errors.Is(err, errors.ErrUnsupported) holds.
//
// The memory that connections use is pinned, so the limit on locked memory (ulimit -l,
// LimitMEMLOCK=) must allow it: 1.2 MB for each link and 16 KiB to 1 MiB for each connection on
// it; see [Config].
//
// Where device, library and kernel can, this package lets the device write to that memory in
// another order than the bytes have arrived in (PCI's relaxed ordering). Many hosts reach their
// full bandwidth only so. Where it is slower instead, set the environment variable
// RINGNET_RELAXED_ORDERING=off. Providers of rdma-core are known that garble inline data, and are gone
// round. For another one there is RINGNET_INLINE=off, or a number of bytes up to 220.
//
// # Waiting
//
// A call that has to wait polls for a few microseconds where that has lately been worthwhile, and
// then sleeps. [Config].BusyPoll sets how long it polls; where that is 0, the environment variable
// RINGNET_BUSYPOLL does, to a duration such as 50us, or off.
//
// # Who may look
//
// On Linux a process that has connections tells its own user and root, and nobody else, which they
// are, on a Unix socket: the command ringnet ss shows them, and ringnet kill ends one, whose calls
// then return ECONNABORTED. With the environment variable RINGNET_SS=off it does not.
//
// # shm
//
// shm connects two processes of one host, or one process with itself, on Linux and within one
// network namespace. Addresses are IP addresses of this host; ports are separate from those of
// TCP. Both processes must run as the same user. Otherwise the listener has to trust the dialer's
// user, by [ListenConfig].TrustUser, and the dialer the listener's, by [Dialer].TrustUser, unless
// that is root.
//
// # What is as in package net, and what is not
//
// Deadlines, half-closes and linger work as documented in package net. Several goroutines may
// use a connection at once, and call the functions of this package. Dial succeeds before the peer's program calls Accept. Errors are a
// *net.OpError around the errnos that TCP gives, and io.EOF is bare. docs/troubleshoot.md has
// their causes and cures.
//
// docs/migrate.md has all differences. The main ones are:
//
//   - Close waits: see below.
//   - A connection that ends without the peer having closed it fails with ECONNRESET, never with
//     io.EOF. So a program cannot mistake a truncated stream for a whole one.
//   - No file descriptor carries the bytes of a connection over shm or rdma. SyscallConn serves to
//     ask whether it is alive, and for nothing else: see [rconn.Conn.SyscallConn].
//
// # Close
//
// Close returns when the peer's device has everything that was written. That takes about one
// round trip; the peer's program need not have read it. Close gives up after [Config].Linger,
// 10 s by default, with ETIMEDOUT: the peer's host may have lost power, its process may be
// stopped, or the network may be broken for longer. The peer then loses what it has not
// received, and reads ECONNRESET. Of a connection that was lost before, Close returns the error,
// if no call has: see [rconn.Conn.Close]. Over TCP, on auto, it is the kernel's Close, which does
// neither.
//
// When several connections of one link are closed, the time that the first Close has waited in
// vain counts for the others. So closing all of them takes no longer than closing one, and no
// Close waits for a host that has been given up. Connections that are not closed go on waiting,
// for [Config].ResumeTimeout.
//
// Close and Shutdown of an http.Server close connections one after the other. Meanwhile they
// hold a mutex that accepting and serving need, and they drop these errors. So they wait for
// each link to a host that is gone, and Shutdown sees the end of its context only afterwards. A
// shorter Linger in the listener's Config limits that.
//
// # Links
//
// The connections from one process to an address of another share a link: a queue pair, a
// completion queue and a goroutine. The first connection makes the link, others begin on it in
// one round trip, and it stays for a while after the last one ([Config].LinkIdle,
// [CloseIdleLinks]). A process with 16 processors or more makes further links when there are many
// connections ([Config].Links). Connections with different Configs have different links, and
// [Config].Dedicated gives a connection a link of its own.
//
// When a link loses its queue pair and both processes live, because a cable is out for example,
// its connections wait and go on over another queue pair. They wait for 30 s by default
// ([Config].ResumeTimeout). When a link ends, all its connections end.
//
// # Memory
//
// The memory that links register, for a device or to share it, stays within a
// limit of the process; see [SetMemoryLimit]. A connection begins with a ring of 16 KiB. The ring
// grows while the connection is busy and there is memory, and shrinks when it is idle
// ([Config].RecvBuffer, [Config].LinkIdle).
//
// When memory is short, rings stop growing; then idle links end and idle rings shrink; then Dial
// fails. Its error has the figures. errors.Is finds syscall.ENOMEM in it if this process has no
// memory, and syscall.ECONNREFUSED if the peer has none.
//
// # Fewer copies and calls
//
//   - io.Copy between a regular file and a connection makes one copy less.
//   - [rconn.Conn.WriteBuffers] and [AutoConn.WriteBuffers] write a net.Buffers as one Write.
//   - [rconn.Conn.Peek] returns bytes that have arrived where they lie in the ring. The peer can
//     still change them; the method's documentation says what that is good for.
//   - A [Buffer] is memory that a program fills and hands over, and from which the device sends
//     without a copy.
//
// # Counters and events
//
// [Stats] counts what a connection has done, [ListenerStats] what a listener has, and [Totals]
// what the process has, over each network, TCP included. [Links] lists the links, and [Memory]
// tells how much memory they use. A [Trace] in a [Dialer] or a [ListenConfig] has functions that
// are called when a connection was dialed, accepted or closed, and when a link comes up, moves
// or goes down. The module metrics exports all of this to Prometheus.
//
// # Security
//
// RDMA and shm bypass packet filters and port mappings that act on TCP, and do not encrypt.
// Identity and secrecy are the task of crypto/tls, which runs on top as over TCP.
// docs/security.md says who may connect, and what peers and their neighbours can and cannot do.
package ringnet
