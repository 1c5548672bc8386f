// Server serves a folder by HTTP. It is a file server of net/http; the only change is
// ringnet.Listen in place of net.Listen.
//
//	cd examples && go run ./http/server -network auto -addr 127.0.0.1:8080 -dir /usr/share/doc
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"

	"github.com/ringnet/ringnet"
)

func main() {
	network := flag.String("network", "auto", "network to listen on; tcp is package net's, to compare with")
	addr := flag.String("addr", "127.0.0.1:8080", "address to listen on")
	dir := flag.String("dir", ".", "folder to serve")
	flag.Parse()

	listen := ringnet.Listen
	if *network == "tcp" {
		listen = net.Listen
	}
	l, err := listen(*network, *addr)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", l.Addr())
	log.Fatal(http.Serve(l, http.FileServer(http.Dir(*dir))))
}
