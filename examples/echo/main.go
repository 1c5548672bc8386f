// Echo sends a message to a server that sends it back. Both are in this process:
//
//	go run ./echo
//	go run ./echo -network rdma -addr 10.0.0.1:0
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net"

	"github.com/ringnet/ringnet"
)

func main() {
	network := flag.String("network", "auto", "auto, shm or rdma")
	addr := flag.String("addr", "127.0.0.1:0", "address to listen on; of an RDMA device, for rdma")
	flag.Parse()

	l, err := ringnet.Listen(*network, *addr)
	if err != nil {
		log.Fatal(err)
	}
	go serve(l)

	c, err := ringnet.Dial(*network, l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	if _, err := io.WriteString(c, "hello, ring"); err != nil {
		log.Fatal(err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		log.Fatal(err)
	}
	answer, err := io.ReadAll(c) // up to the server's Close
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, over %s\n", answer, c.(interface{ Carrier() string }).Carrier())
	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
}

func serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			defer c.Close()
			if _, err := io.Copy(c, c); err != nil {
				log.Print(err)
			}
		}()
	}
}
