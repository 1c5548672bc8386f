// Package examples is a folder of programs to copy from, each of which runs with
// one command that its first lines say:
//
//	http      a file server and its client, with nothing but net/http
//	http3     a file server and its client by HTTP/3, over datagrams: quic-go
//	feed      prices for a group, with gaps reported: multicast
//	twolines  a program for TCP that became one for auto
//	sums      what arrives is hashed where it lies, and sent together with its header
//	activation  a server that systemd restarts without downtime
//
// Smaller ones, among them crypto/tls on top, are those of package ringnet's documentation; that of
// gRPC is in example_test.go.
package examples
