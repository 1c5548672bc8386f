// Copy sends a file to another process, which keeps it only if its SHA-256 is the one that the
// sender has computed:
//
//	cd examples && go run ./copy -listen :7472 copied.tar
//	cd examples && go run ./copy -dial 10.0.0.1:7472 file.tar
//
// Any host that can connect may send one: put crypto/tls on top where that matters.
package main

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"

	"github.com/ringnet/ringnet"
)

func main() {
	listen := flag.String("listen", "", "address to receive a file at")
	dial := flag.String("dial", "", "address to send a file to")
	flag.Parse()
	c, err := connect(*listen, *dial)
	var sum []byte
	switch {
	case err != nil:
	case *listen != "":
		sum, err = receive(c, flag.Arg(0))
	default:
		sum, err = send(c, flag.Arg(0))
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%x  %s\n", sum, flag.Arg(0))
	_ = c.Close()
}

func connect(listen, dial string) (net.Conn, error) {
	if listen == "" {
		return ringnet.Dial("auto", dial)
	}
	l, err := ringnet.Listen("auto", listen)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	fmt.Println("listening on", l.Addr())
	return l.Accept()
}

// send sends the file's length, its bytes and their sum, and waits until the receiver has it.
func send(c net.Conn, name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	err = binary.Write(c, binary.BigEndian, size)
	if err == nil {
		_, err = io.CopyN(io.MultiWriter(c, sum), io.NewSectionReader(file, 0, size), size)
	}
	if err == nil {
		_, err = c.Write(sum.Sum(nil))
	}
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	return sum.Sum(nil), err
}

func receive(c net.Conn, name string) ([]byte, error) {
	var size int64
	if err := binary.Read(c, binary.BigEndian, &size); err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(".", "copy-*") // gets its name when it is whole
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	sum, sent := sha256.New(), make([]byte, sha256.Size)
	_, err = io.CopyN(io.MultiWriter(file, sum), c, size)
	if err == nil {
		_, err = io.ReadFull(c, sent)
	}
	if err == nil && string(sent) != string(sum.Sum(nil)) {
		err = fmt.Errorf("what has arrived has SHA-256 %x, and what was sent %x", sum.Sum(nil), sent)
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err == nil {
		_, err = c.Write([]byte{1})
	}
	return sent, err
}
