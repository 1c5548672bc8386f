// Package shm is the fabric of one host: queue pairs in memory that two
// processes share, or both ends of a connection within one process. It needs Linux
// and nothing else: no hardware, no cgo, no file system.
//
// Each end of a connection owns a segment of memory that both have mapped. It
// holds its receive queue and the memory that it registered for remote writes.
// The peer copies a message straight to its place, and publishes a descriptor
// of eight bytes; so a message costs one copy and, while both ends are awake,
// no system call. Both segments lie in one sealed memfd, which the listener
// makes once it has accepted the request. One Unix socket per connection
// carries the handshake, rings the doorbell of an end that sleeps, and ends
// when the peer does, for whatever reason.
//
// The peer is not trusted with anything. What it can reach is this connection's
// memory and the socket. The memory's pages cannot go, this end touches none that
// the peer has not made, every word is read once and checked against this end's own counts before it
// is used, and no lock is shared.
//
// The way through the files: config.go says who may connect, host.go which
// addresses are this host's, addr.go has the names of sockets and lookup.go who
// has which, for which netlink.go asks the kernel, dial.go and listener.go make
// endpoints, frame.go and handshake.go connect them, socket.go passes the descriptor,
// closer.go closes peers' and makes other calls that peers make long, patience.go measures
// doorbells, segment.go has the memory and region.go that for rings,
// endpoint.go what an end is made of, queue.go posts and polls, wait.go sleeps and wakes.
package shm
