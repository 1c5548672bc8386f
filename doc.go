// Package ringnet is package net over RDMA: Dial and Listen return net.Conn and
// net.Listener whose bytes travel by RDMA, over RoCE or InfiniBand, past the
// kernels of both hosts. What is written against package net (net/http, gRPC,
// crypto/tls, database drivers) runs unchanged:
//
//	l, err := ringnet.Listen("rdma", ":8080") // was net.Listen("tcp", ":8080")
//	http.Serve(l, handler)
//
//	conn, err := ringnet.Dial("rdma", "10.0.0.1:8080") // was net.Dial
//
// # Networks
//
//	rdma   rdma_cm over an RDMA device, IPv4 or IPv6
//	rdma4  the same, IPv4 only
//	rdma6  the same, IPv6 only
//	shm    shared memory, to a peer on this host; no hardware
//	auto   the best that both sides have: shm, then rdma, then plain TCP
//
// The network that carries a connection is LocalAddr().Network(). Libraries that ask
// their dialers for "tcp" get one of these by [Dialer.ForTCP].
//
// # rdma
//
// The rdma networks want Linux, an RDMA device with an IP address on its network interface,
// a build with cgo, and the libraries libibverbs.so.1 and librdmacm.so.1
// (Debian: libibverbs1, librdmacm1, ibverbs-providers), which are loaded at the
// first use. Without one of these, Dial and Listen return an error for which
// errors.Is(err, errors.ErrUnsupported) holds and which says what is missing.
// Memory that connections use is pinned, so the limit on locked memory
// (ulimit -l, LimitMEMLOCK=) must allow it: 1.3 MB for a link, and 16 KiB
// to 1 MiB for each connection on it, see [Config].
//
// Devices may write to that memory in another order than the bytes arrived in
// (PCI's relaxed ordering), where the device, the library and the kernel can:
// many hosts reach their bandwidth only so. Where it is slower instead, the
// environment variable RINGNET_RELAXED_ORDERING=off switches it off.
//
// # Links
//
// The connections from one process to an address of another share a link: a queue
// pair, a completion queue and a goroutine. The first makes it, the others begin
// on it in one round trip, and it stays for a while when the last is gone
// ([Config.LinkIdle], [CloseIdleLinks]). A process with 16 processors or more has
// further links when there are many connections ([Config.Links]). Links of
// connections whose Configs differ are apart, and [Config.Dedicated] gives a
// connection one of its own. A link that dies ends all connections on it. [Links]
// tells what is up.
//
// # Memory
//
// What links register, for a device or to share it, stays within a limit of the
// process, see [SetMemoryLimit]. A connection begins with a ring of 16 KiB, which
// grows while it is busy and there is memory, and shrinks when it is idle
// ([Config.RecvBuffer], [Config.LinkIdle]). Where memory is short, growth stops
// first, then what is idle is given back, and then Dial fails with an error that
// says so, for which errors.Is(err, syscall.ENOMEM) holds, or ECONNREFUSED if it is
// the peer's.
//
// # shm
//
// Both ends are processes of one host, or one process, on Linux. Addresses are
// IP addresses of this host, in a port space of their own. The peer has to be
// of the same user; a listener may also be root's.
//
// # auto
//
// A listener accepts shm, rdma and TCP on one port, and a dialer takes the best
// that answers: it connects with the process that TCP would have connected it
// with, through port mappings, service addresses and packet filters, and not later
// than TCP would by more than a quarter of a second. A link is taken only with a TCP
// connection that shows that it leads to the same listener; connections that begin
// later on it need none. "auto4" and "auto6" use addresses of one family.
//
// What could not be had is passed over; [AutoConn.PassedOver] says why, with a
// [ReasonCode] for metrics. What has failed for an address to which TCP connects is
// not tried again for a minute. The environment variable RINGNET_NETWORKS, such as
// "shm,tcp", says which networks auto uses, in the order to try them; without tcp,
// and with [Dialer.Require], a dial fails where it would have fallen back.
// docs/auto.md has the details.
//
// # What is as in package net, and what is not
//
// Addresses are host:port with names of hosts and services. Errors are
// *net.OpError around the errnos that TCP gives, io.EOF is bare, deadlines
// behave as documented in net.Conn, and Dial succeeds before anybody calls
// Accept. Two things differ: [Conn.Close] waits, for about one round trip,
// until the peer's device has everything that was written; and a connection
// that ends without the peer having closed it is always ECONNRESET, never
// io.EOF, so a truncated stream cannot be mistaken for a whole one.
//
// Close returns when the peer's device has taken everything, which its application
// need not read, or after [Config].Linger, 10 s by default, with ETIMEDOUT: the peer's
// host has lost power, say, or its process is stopped. The other connections of that
// link then end without waiting once more. Close of an http.Server, and Shutdown,
// close connections one after the other, with a mutex held that accepting and serving
// want, and drop these errors. So both wait for each link of a host that is gone, and
// Shutdown notices the end of its context only afterwards. A shorter Linger in the
// listener's Config bounds that. A host that KeepAlive has found to be gone is not
// waited for.
//
// Connections do not implement syscall.Conn, for there is no descriptor that
// carries their bytes. RDMA bypasses packet filters and port mappings that act
// on TCP, and does not encrypt: identity and secrecy are crypto/tls's business,
// which runs on top as ever. docs/security.md says who may connect, and what
// peers and their neighbours can and cannot do.
package ringnet
