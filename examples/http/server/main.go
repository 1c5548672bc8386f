// Server serves a folder by HTTP over RDMA. It is a net/http file server but
// for one line: ringnet.Listen where net.Listen would be.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"

	"github.com/ringnet/ringnet"
)

func main() {
	network := flag.String("network", "rdma", "network to listen on")
	addr := flag.String("addr", ":8080", "address to listen on")
	dir := flag.String("dir", ".", "folder to serve")
	flag.Parse()

	l, err := ringnet.Listen(*network, *addr)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", l.Addr())
	log.Fatal(http.Serve(l, http.FileServer(http.Dir(*dir))))
}
