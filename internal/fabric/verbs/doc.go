// Package verbs is the fabric of RDMA devices: connections by rdma_cm, queue pairs by
// libibverbs. It is the only package of ringnet with cgo.
//
// [Fabric] opens the libraries at its first call, and nothing is linked with them, so a
// program runs with and without them. abi.h declares what is used of them, functions.h
// lists the functions, shim.c wraps each in one call.
//
// From there to the wire: cm.go receives the connection manager's events and dispatches
// them to endpoints and listeners; dial.go and listener.go make endpoints; endpoint.go
// opens and destroys their queue pairs, with queues as deep as depth.go finds that the
// device allows; connect.go connects them; queue.go posts and polls; wait.go sleeps
// until there is something to poll; async.go receives the device's asynchronous events.
//
// Datagrams are in the files whose names begin with datagram. They use endpoints,
// listeners and the device manager; no other file uses what these declare.
package verbs
