// Package link carries streams between two processes on one queue pair.
//
// A [Link] owns the queue pair, what completes on it, the memory registered for
// it and one goroutine, its engine. A [Stream] is an entry in the link's table:
// a ring at each end and a ledger. The way of a byte: [Stream.Write] (write.go)
// gives it a place, the send queue (send.go) posts it, the peer's completion
// brings it (receive.go), [Stream.Read] (read.go) copies it out. Whoever waits
// polls or is woken (wait.go); the engine (engine.go) moves on what nobody waits
// for, and takes the link down in the end.
//
// # The life of a link
//
//	Up        streams come and go           → Draining, on a cause
//	Draining  the queue pair is in ERR      → Ended, when all receives are back;
//	                                          Seeking, if the link may outlive that
//	Seeking   its streams wait              → Up, over another queue pair;
//	                                          Ended, if there is none to be had
//	Ended     nothing more will arrive      → Closed, when nothing of it is owned
//	Closed    the endpoint is destroyed
//
// What a link goes on over is its standby (standby.go), if it has one, or a queue pair
// that is dialed then (path.go, search.go).
//
// A link begins with the stream that it was dialed for, or, if it is one of several
// for a pair of processes (pool.go), without. An idle link leaves: each side says
// GOAWAY, and who has said and heard it with no stream left disconnects. The life of
// a stream on the wire is that of [credit.Stream]; its owner's part is [use].
//
// # Memory
//
// What a link registers is within its account of the process's budget (package
// budget): at first what it always needs, all at once, then slabs, which arena.go
// cuts into rings. A ring grows while it is filled and read (inbox.go), unless
// memory is short, and shrinks when nothing comes to it; slabs with nothing in
// them are freed (tidy.go). When something that begins finds no memory, every link
// of the process gives up what it can do without.
//
// # Locks
//
// Link.mu guards the link, its streams, and Poll, PostRecv, Arm and Register of
// the endpoint. PostSend runs one at a time (see [Link.trySend]) and without it,
// for a device may take long; with it if there is little to post and the device
// is not slow. Stream.reading and Stream.writing, each held by the one
// call under way, are taken before it. Methods that say "may release mu" do so
// while the device posts, or while bytes are copied.
package link
