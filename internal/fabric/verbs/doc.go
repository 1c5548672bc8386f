// Package verbs is the fabric of RDMA devices: connections of queue pairs of type RC, which the
// connection manager of rdma-core makes (package rdmacore).
//
// From [Fabric] to the wire: verbs.go dials and listens; endpoint.go opens queue pairs, with queues as
// deep as depth.go finds that the device allows; connect.go connects them; queue.go posts and polls;
// mailbox.go carries Sends.
package verbs
