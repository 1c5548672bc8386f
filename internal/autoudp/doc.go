// Package autoudp has datagrams that go over shared memory or RDMA where these lead to the process
// that UDP leads to, and over UDP where they do not.
//
// An endpoint has a UDP socket, and at the same port one for datagrams of each better carrier of
// this host. It sends to an address by UDP at first, and looks for a carrier that has a receiver
// there. Whether that is the one that UDP leads to, the two ends prove (proof.go, and section 12.4
// of docs/protocol.md); from then on the datagrams take the carrier. The proof is repeated once in
// a while, and UDP is taken again when the carrier ends or the proof fails.
//
// Only a Receive hears of a proof, so an end that nobody reads from goes on to send by UDP.
package autoudp
