package shm

// Config says whom a fabric connects with.
type Config struct {
	// Trust reports whether to connect with processes of a user, besides those of
	// one's own user and, for dialers, listeners of root. nil trusts nobody
	// else. Either end asks its own Config, with the peer's effective user ID as
	// it is called in this process's user namespace. A user who has none there
	// is never trusted: the kernel does not tell who that is.
	//
	// A trusted user cannot harm more than the connections with it, but it can
	// hold up to Listener's backlog of them, each with its memory, and a dialer
	// says how much a listener makes for its queues: up to 65 MiB.
	Trust func(uid uint32) bool
}
