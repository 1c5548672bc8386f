// Package examples is a folder of programs to copy from, each of which runs with
// one command that its first lines say:
//
//	http        a file server and its client, with nothing but net/http
//	copy        a file, with its SHA-256 checked at the other end
//	activation  a server that systemd restarts without downtime
//
// Smaller ones, among them crypto/tls on top, are those of package ringnet's documentation; those of
// gRPC are in package grpcnet's.
package examples
