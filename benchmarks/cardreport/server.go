package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"path/filepath"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/benchmarks/process"
)

// Server is the other end, as package net/rpc calls it: of another host, or of this one. It has one
// child at a time.
type Server struct {
	options
	child *process.Child
}

// port is where the server listens for a client.
const port = "18599"

// serve serves one client after the other.
func (o *options) serve() error {
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "card-report: waiting for make card-report CARD_REPORT=\"-connect ADDRESS\", with the address of this host's device\n")
	return process.ServeAll(l, func() process.Server { return &Server{options: *o} })
}

// Gone kills the child.
func (s *Server) Gone() {
	if s.child != nil {
		s.child.Kill()
		s.child = nil
	}
}

// reach connects to the server: the other host's, or one within this process.
func (o *options) reach() (*rpc.Client, error) {
	if o.connect != "" {
		return rpc.Dial("tcp", net.JoinHostPort(o.connect, port))
	}
	return process.Within(&Server{options: *o}), nil
}

// Describe tells of the server's host.
func (s *Server) Describe(_ struct{}, p *Part) error {
	s.describe(context.Background(), p)
	return nil
}

// StartPeer starts an echo server of ringnet at an address of the server's device, and returns
// where it listens.
func (s *Server) StartPeer(host string, address *string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return s.start(address, self, "-peer", host)
}

// StartBenchmarks starts the benchmarks' server for one client, and returns where it listens.
func (s *Server) StartBenchmarks(_ struct{}, address *string) error {
	return s.start(address, filepath.Join(s.bin, "benchmarks"), "-once", "-listen", ":0")
}

func (s *Server) start(address *string, program string, args ...string) (err error) {
	s.Gone()
	if s.child, err = process.Start(program, args...); err != nil {
		return err
	}
	*address = s.child.Address
	return nil
}

// Kill kills the child, and waits until it is gone.
func (s *Server) Kill(struct{}, *struct{}) error {
	s.Gone()
	return nil
}

// bePeer is the echo server.
func bePeer(host string) error {
	l, err := ringnet.Listen("rdma", net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	process.Ready(l.Addr().String())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c) // the client sees what fails
		}()
	}
}
