// Package examples is a folder of programs to copy from, each of which runs with
// one command that its first lines say:
//
//	echo      a Conn and a Listener, by themselves
//	http      a file server and its client, with nothing but net/http
//	http3     the same by HTTP/3, over datagrams: quic-go
//	feed      prices for a group, with gaps reported: multicast
//	tls       crypto/tls on top
//	grpc      a gRPC server and its client
//	twolines  a program for TCP that became one for auto
//	sums      what arrives is hashed where it lies, and sent together with its header
//	activation  a server that systemd restarts without downtime
package examples
