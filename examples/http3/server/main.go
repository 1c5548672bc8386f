// Server serves a folder by HTTP/3, which is QUIC, over datagrams of ringnet. It is a
// server of quic-go; the only change is ringnet.ListenPacket in place of net.ListenPacket.
//
//	go run $(go env GOROOT)/src/crypto/tls/generate_cert.go -host ring.example
//	go run ./http3/server -network shm-udp -addr 127.0.0.1:8443 -dir /usr/share/doc
//
// QUIC repeats datagrams that are lost. Its packets have 1200 bytes or more, so over
// rdma-udp it needs a RoCE MTU of 2048, and with it an Ethernet MTU of 2200 or more.
package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"

	"github.com/quic-go/quic-go/http3"

	"github.com/ringnet/ringnet"
)

func main() {
	network := flag.String("network", "shm-udp", "network to listen on: shm-udp, rdma-udp, auto-udp; udp is package net's, to compare with")
	addr := flag.String("addr", "127.0.0.1:8443", "address to listen on; of an RDMA device, for rdma-udp")
	dir := flag.String("dir", ".", "folder to serve")
	cert := flag.String("cert", "cert.pem", "certificate for ring.example")
	key := flag.String("key", "key.pem", "its key")
	flag.Parse()

	own, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatal(err)
	}
	listen := ringnet.ListenPacket
	if *network == "udp" {
		listen = net.ListenPacket
	}
	conn, err := listen(*network, *addr)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", conn.LocalAddr())
	server := &http3.Server{
		Handler:   http.FileServer(http.Dir(*dir)),
		TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{own}}),
	}
	log.Fatal(server.Serve(conn))
}
