// Package link carries streams between two processes on one queue pair.
//
// A [Link] drives its machine (package machine), which decides: it owns the queue pair, its completion queue and
// the memory registered for it, and does what the machine wants. A goroutine, its engine, lives as long as the link; a
// link that has lost its queue pair has others, for the search for another. A [Stream] is a stream of the machine's,
// with the calls that wait.
//
// The way of a byte: [Stream.Write] (write.go) gives it a place in the peer's ring, unlock (unlock.go) posts the
// batch of work requests that it is part of, the peer polls its completion, [Stream.Read] (read.go) copies it out. Of the
// calls that wait, and the engine (engine.go), one has the watch (wait.go): it polls (poll.go), or sleeps until
// something completes, and wakes the others. The engine takes the link down in the end.
//
// A link begins with the stream that it was dialed for (handshake.go); more begin on it (open.go), on one of several
// for a pair of processes (pool.go). One that has lost its queue pair goes on over another, which is dialed then (path.go,
// search.go, move.go).
//
// # Memory
//
// What a link registers is within its account of the process's budget (package
// budget): at first what it always needs, all at once, then slabs, which are cut
// into rings, and larger staging memory. Those who need any wait in line while it is registered
// (register.go). When something that begins finds no memory, every link
// of the process gives up what it can do without (shrink.go).
//
// # Locks
//
// Link.mu guards the link, its machine, and Poll, PostRecv, Arm, Disconnect and Reaches of the endpoint, and Keep of
// memory. During the handshake nobody else knows of the link, but for the reconnect listener, which may leave it a request
// (path.arrival). It is
// taken by lock and given up by unlock, which carries out what the machine wants. What is not exported, touches any of
// that and does not call lock is called between the two; a comment says where it releases mu meanwhile, to copy bytes,
// to register memory or to wait: what its caller has read before may have changed. One goroutine at a
// time calls PostSend: with mu if there is little to post, or else without. Stream.reading and Stream.writing,
// each held by the one call under way, are taken before mu.
package link
