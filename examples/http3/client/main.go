// Client fetches a file by HTTP/3 over datagrams of ringnet, and writes it to the standard output.
// It is a client of quic-go; the only change is ringnet.ListenPacket in place of net.ListenPacket.
//
//	go run ./http3/client -network shm-udp https://127.0.0.1:8443/README.md
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/ringnet/ringnet"
)

func main() {
	log.SetFlags(0)
	network := flag.String("network", "shm-udp", "network to send on: shm-udp, rdma-udp, auto-udp; udp is package net's, to compare with")
	cert := flag.String("cert", "cert.pem", "certificate of the server, for ring.example")
	flag.Parse()

	listen := ringnet.ListenPacket
	if *network == "udp" {
		listen = net.ListenPacket
	}
	conn, err := listen(*network, ":0")
	if err != nil {
		log.Fatal(err)
	}
	pem, err := os.ReadFile(*cert)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &quic.Transport{Conn: conn}
	client := &http.Client{Transport: &http3.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "ring.example"},
		Dial: func(ctx context.Context, addr string, t *tls.Config, q *quic.Config) (*quic.Conn, error) {
			to, err := net.ResolveUDPAddr("udp", addr)
			if err != nil {
				return nil, err
			}
			return transport.DialEarly(ctx, to, t, q)
		},
	}}
	resp, err := client.Get(flag.Arg(0))
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		log.Fatal(resp.Status)
	}
	if _, err := io.Copy(os.Stdout, resp.Body); err != nil {
		log.Fatal(err)
	}
}
