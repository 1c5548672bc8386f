// Sums sends blobs to a server that answers with their SHA-256, both in this process:
//
//	go run ./sums
//	go run ./sums -network rdma -addr 10.0.0.1:0
//
// The client writes a header and a body with one WriteBuffers. The server hashes the
// bodies where the device has placed them, with Peek and Discard.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"log"
	"net"

	"github.com/ringnet/ringnet"
)

const maxBlob = 1 << 30

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
	blobs := [][]byte{[]byte("a"), nil, make([]byte, 1024), bytes.Repeat([]byte("0123456789"), 1<<20)}
	total := 0
	for _, blob := range blobs {
		sum, err := ask(c, blob)
		if err != nil {
			log.Fatal(err)
		}
		if sum != sha256.Sum256(blob) {
			log.Fatalf("the sum of %d bytes is wrong", len(blob))
		}
		total += len(blob)
	}
	fmt.Printf("%d blobs, %d bytes, all sums right, over %s\n", len(blobs), total, c.(interface{ Carrier() string }).Carrier())
	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
}

// ask sends the length of a blob and the blob, at once, and returns the answer.
func ask(c net.Conn, blob []byte) (sum [sha256.Size]byte, err error) {
	header := binary.BigEndian.AppendUint64(nil, uint64(len(blob)))
	message := net.Buffers{header, blob}
	// Every connection of package ringnet has WriteBuffers.
	if _, err := c.(interface {
		WriteBuffers(bufs *net.Buffers) (int64, error)
	}).WriteBuffers(&message); err != nil {
		return sum, err
	}
	_, err = io.ReadFull(c, sum[:])
	return sum, err
}

func serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			defer c.Close()
			if err := answer(c); err != io.EOF {
				log.Print(err)
			}
		}()
	}
}

func answer(c net.Conn) error {
	for {
		// Copy the length before use: the peer can change the bytes in the ring.
		var header [8]byte
		if _, err := io.ReadFull(c, header[:]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint64(header[:])
		if n > maxBlob {
			return fmt.Errorf("a blob of %d bytes; %d at most", n, maxBlob)
		}
		hash := sha256.New()
		if err := pass(hash, c, int(n)); err != nil {
			return err
		}
		if _, err := c.Write(hash.Sum(nil)); err != nil {
			return err
		}
	}
}

// pass writes the next n bytes to w, without a copy in between. w gets each byte once.
func pass(w io.Writer, c net.Conn, n int) error {
	if auto, ok := c.(*ringnet.AutoConn); ok {
		c = auto.NetConn()
	}
	ring, ok := c.(*ringnet.Conn)
	if !ok { // over TCP there is none
		_, err := io.CopyN(w, c, int64(n))
		return err
	}
	for n > 0 {
		if _, err := ring.Peek(1); err != nil {
			return fmt.Errorf("%d bytes are missing: %w", n, err)
		}
		p, err := ring.Peek(min(n, ring.Buffered()))
		if err != nil {
			return err
		}
		m, err := w.Write(p)
		if err != nil {
			return err
		}
		// This fails if the connection was closed meanwhile. Then w may have got anything.
		if _, err := ring.Discard(m); err != nil {
			return err
		}
		n -= m
	}
	return nil
}
