// Command beside has connections of ringnet open, over each network that this host has, until its
// standard input ends. The tests have to pass beside such programs of any user: see tools/testusers.sh.
package main

import (
	"fmt"
	"io"
	"net"
	"os"

	"github.com/ringnet/ringnet"
)

func main() {
	for _, network := range []string{"auto", "shm"} {
		if err := connect(network, 8); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// open keeps connections from the garbage collector.
var open []net.Conn

func connect(network string, connections int) error {
	l, err := ringnet.Listen(network, "127.0.0.1:0")
	if err != nil {
		return err
	}
	for range connections {
		c, err := ringnet.Dial(network, l.Addr().String())
		if err != nil {
			return err
		}
		a, err := l.Accept()
		if err != nil {
			return err
		}
		open = append(open, c, a)
	}
	return nil
}
