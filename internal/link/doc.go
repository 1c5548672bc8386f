// Package link carries streams between two processes on one queue pair.
//
// A [Link] owns the queue pair, its completion queue and the memory registered for it.
// A goroutine, its engine, lives as long as the link; a link that has lost its queue pair
// has others, for the search for another. A [Stream] is an entry in the link's table:
// a ring at each end and a ledger.
//
// The way of a byte: [Stream.Write] (write.go) gives it a place in the peer's ring,
// unlock (unlock.go) has it put into a batch of work requests (send.go, post.go), the peer polls its
// completion (receive.go), [Stream.Read] (read.go) copies it out. Of the calls that wait,
// and the engine (engine.go), one has the watch (wait.go): it polls (poll.go), or sleeps until
// something completes, and wakes the others. The engine takes the link down in the end.
//
// # The life of a link
//
// Its states are those of [stage] (life.go). A link that goes on after it has lost its
// queue pair does so over another, which is dialed then (path.go, search.go).
//
// A link begins with the stream that it was dialed for, or, if it is one of several
// for a pair of processes (pool.go), without. An idle link leaves (idle.go), and one whose
// listener is closed when its streams are over: each side
// sends GOAWAY, and disconnects when it has sent and received it and no stream is left. The
// life of a stream on the wire is that of [credit.Stream]; what its owner still does with
// it is [use].
//
// # Memory
//
// What a link registers is within its account of the process's budget (package
// budget): at first what it always needs, all at once, then slabs, which arena.go
// cuts into rings. Those who need a slab wait in line while it is registered
// (register.go). A ring grows while it is filled and read (inbox.go), unless
// memory is short, and shrinks when nothing comes to it; slabs with nothing in
// them are freed (shrink.go). When something that begins finds no memory, every link
// of the process gives up what it can do without.
//
// # Locks
//
// Link.mu guards the link, its streams, and Poll, PostRecv and Arm of the endpoint. It is
// taken by lock and given up by unlock, which carries out what has become due (unlock.go). One goroutine at a
// time calls PostSend: with mu if there is little to post, or else the one that has set
// sendQueue.posting, without. Stream.reading and Stream.writing,
// each held by the one call under way, are taken before mu.
//
// "Called with mu held" at a method is about the mu of its own type or, for all that
// belongs to a link, about Link.mu. Few release it meanwhile, to copy bytes, to register memory or to wait,
// and say so: what their caller has read before may have changed.
package link
