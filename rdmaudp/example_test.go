package rdmaudp_test

import (
	"fmt"
	"log"
	"net"

	"github.com/ringnet/ringnet/rdmaudp"
)

// These examples want a device with RoCE: they have no Output, so that go test compiles them and does not run them.

// A datagram there and back.
func Example() {
	server, err := rdmaudp.Listen("rdma-udp", ":8080")
	if err != nil {
		log.Fatal(err) // errors.Is(err, errors.ErrUnsupported): this host has none
	}
	defer server.Close()
	go func() {
		for p := make([]byte, server.MaxMessage()); ; {
			n, from, err := server.ReadFrom(p)
			if err != nil {
				return // errors.Is(err, net.ErrClosed): server was closed
			}
			_, _ = server.WriteTo(p[:n], from)
		}
	}()

	client, err := rdmaudp.Dial("rdma-udp", "10.0.0.1:8080")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	fmt.Fprint(client, "is there an echo?")
	p := make([]byte, client.MaxMessage())
	n, err := client.Read(p) // with a deadline, for a datagram may be lost
	fmt.Println(string(p[:n]), err)
}

// A feed to a group, to which any PacketConn may send.
func ExampleListenMulticast() {
	ifi, err := net.InterfaceByName("eth0")
	if err != nil {
		log.Fatal(err)
	}
	member, err := rdmaudp.ListenMulticast("rdma-udp", ifi, "239.1.2.3:4567")
	if err != nil {
		log.Fatal(err)
	}
	defer member.Close()
	ms := make([]rdmaudp.Message, 64)
	for i := range ms {
		ms[i].Buffers = [][]byte{make([]byte, member.MaxMessage())}
	}
	for {
		n, err := member.ReadBatch(ms, 0)
		if err != nil {
			log.Fatal(err)
		}
		for _, m := range ms[:n] {
			fmt.Println(m.Addr, string(m.Buffers[0][:m.N]))
		}
	}
}
