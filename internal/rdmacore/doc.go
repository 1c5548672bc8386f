// Package rdmacore is what ringnet uses of rdma-core, the libraries librdmacm and libibverbs:
// identifiers of the connection manager, queue pairs with their memory and their completions, and
// the events of both. It is the only package of ringnet with cgo. What is sent by a queue pair is
// up to those who import it: package verbs makes connections of queue pairs of type RC, and module
// rdmaudp datagrams of those of type UD.
//
// [Open] opens the libraries at its first call, and nothing is linked with them, so a program runs
// with and without them (load.go). abi.h declares what is used of them, functions.h lists the
// functions, and shim.c wraps each in one call.
//
// cm.go receives the connection manager's events and dispatches them (event.go) to an [ID] (id.go,
// resolve.go) or a [Listener]. A [QueuePair] is made on an ID (queuepair.go), with [Memory]; a
// [Queue] posts and polls (queue.go), and wait.go sleeps until there is something to poll.
// device.go receives the devices' asynchronous events. ud.go has what queue pairs of type UD alone
// need, and cards.go which ports this host has.
//
// Of package fabric it uses the errors, by which all above tell what has happened, and what waits
// for a descriptor; its contract is that of package verbs.
package rdmacore
