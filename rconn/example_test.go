package rconn_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/rconn"
)

// pair returns the two ends of a connection over shared memory.
func pair() (client, server *rconn.Conn) {
	l, err := ringnet.Listen("shm", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	dialed, err := ringnet.Dial("shm", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		log.Fatal(err)
	}
	return dialed.(*rconn.Conn), accepted.(*rconn.Conn)
}

// What has arrived goes to a file or another program from where the device has placed it.
func ExampleConn_Peek() {
	conn, peer := pair()
	defer conn.Close()
	fmt.Fprintln(peer, "from the ring")
	_ = peer.Close()

	for {
		if _, err := conn.Peek(1); err != nil { // waits until something has arrived
			fmt.Println(errors.Is(err, io.EOF))
			break
		}
		p, _ := conn.Peek(conn.Buffered()) // all of it that lies in one piece
		n, err := os.Stdout.Write(p)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := conn.Discard(n); err != nil { // gives its room back to the peer
			log.Fatal(err)
		}
	}
	// Output:
	// from the ring
	// true
}

// The device sends from memory that the program has filled.
func ExampleConn_WriteBuffer() {
	conn, peer := pair()
	defer peer.Close()
	b, err := conn.NewBuffer(4 << 10)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := b.Fill(strings.NewReader("without a copy")); err != nil { // a file, for example
		log.Fatal(err)
	}
	if _, err := conn.WriteBuffer(b); err != nil {
		log.Fatal(err)
	}
	b.Wait() // until the device has handed b back
	fmt.Println(b.Len(), "bytes left")
	_ = b.Close()
	_ = conn.Close()

	got, err := io.ReadAll(peer)
	fmt.Println(string(got), err)
	// Output:
	// 0 bytes left
	// without a copy <nil>
}
