// Twolines is a program for TCP that became one for auto: a server that keeps
// values by name, and a client of it.
//
//	go run ./twolines
//
// Two calls have changed, and the import that they need. Nothing else depends on what
// carries the bytes, and the server still serves peers that only speak TCP, on the same
// port:
//
//	was  l, err := net.Listen("tcp", *addr)
//	is   l, err := ringnet.Listen("auto", *addr)
//
//	was  c, err := net.Dial("tcp", l.Addr().String())
//	is   c, err := ringnet.Dial("auto", l.Addr().String())
package main

import (
	"bufio"
	"flag"
	"fmt"
	"log"
	"net"
	"strings"
	"sync"

	"github.com/ringnet/ringnet"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:0", "address to listen on")
	flag.Parse()

	l, err := ringnet.Listen("auto", *addr)
	if err != nil {
		log.Fatal(err)
	}
	go serve(l, new(sync.Map))

	c, err := ringnet.Dial("auto", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	answers := bufio.NewScanner(c)
	for _, line := range []string{"set colour blue", "get colour", "get size"} {
		fmt.Fprintln(c, line)
		if !answers.Scan() {
			log.Fatal("no answer: ", answers.Err())
		}
		fmt.Printf("%s: %s\n", line, answers.Text())
	}
}

func serve(l net.Listener, values *sync.Map) {
	for {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go answer(c, values)
	}
}

// answer answers lines: "set NAME VALUE" and "get NAME".
func answer(c net.Conn, values *sync.Map) {
	defer c.Close()
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		switch words := strings.Fields(lines.Text()); {
		case len(words) == 3 && words[0] == "set":
			values.Store(words[1], words[2])
			fmt.Fprintln(c, "ok")
		case len(words) == 2 && words[0] == "get":
			value, ok := values.Load(words[1])
			if !ok {
				value = "none"
			}
			fmt.Fprintln(c, value)
		default:
			fmt.Fprintln(c, "what?")
		}
	}
}
