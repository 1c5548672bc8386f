package process

import (
	"net"
	"net/rpc"
)

// A Server is the other end, as package net/rpc calls it. It has one client.
type Server interface {
	// Gone is called when the client has gone.
	Gone()
}

// Serve serves a client, from its connection on to the end.
func Serve(c net.Conn, s Server) {
	r := rpc.NewServer()
	if err := r.Register(s); err != nil {
		panic(err) // methods are what they are
	}
	r.ServeConn(c)
	s.Gone()
}

// Within returns a client of a server in this process.
func Within(s Server) *rpc.Client {
	near, far := net.Pipe()
	go Serve(far, s)
	return rpc.NewClient(near)
}

// ServeAll serves one client of a listener after the other, each with a server of its own.
func ServeAll(l net.Listener, server func() Server) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		Serve(c, server())
	}
}
