// Package ud sends and receives datagrams by queue pairs of type UD, of rdma-core (package rdmacore).
// datagram.go is what package rdmaudp uses of it.
//
// An endpoint (endpoint.go) has a queue pair for each port of a device that belongs to its address
// (queue.go, receive.go, send.go), which send to any number of others and receive from them.
//
// A sender finds the queue pair at an address by the connection manager's SIDR, in its port space for
// UDP: one request and one reply. A device does not tell a sender that a queue pair has ended.
// Therefore a sender has another request pending, which the receiver, or its kernel when the process
// has died, rejects when the queue pair ends (section 2 of protocol.md: answer.go has the receiver's
// side, resolve.go the sender's). Members of groups are in group.go. header.go, resolution.go and
// grh.go have the bytes.
package ud
