package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/ringnet/ringnet"
)

// Server is the other end, as package net/rpc calls it: of another host, or of this one.
type Server struct {
	options

	mu       sync.Mutex // guards what follows
	last     int
	children map[int]*exec.Cmd
}

func newServer(o options) *Server { return &Server{options: o, children: make(map[int]*exec.Cmd)} }

// port is where the server listens for a client.
const port = "18599"

// listening comes before the address that a child tells its parent.
const listening = "listening on "

// serve serves one client after the other.
func (o *options) serve(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+port)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	fmt.Fprintf(os.Stderr, "card-report: waiting for make card-report CARD_REPORT=\"-connect ADDRESS\", with the address of this host's device\n")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { c.Close() })
		newServer(*o).serveClient(c)
		stop()
	}
}

func (s *Server) serveClient(c io.ReadWriteCloser) {
	r := rpc.NewServer()
	if err := r.Register(s); err != nil {
		panic(err) // methods are what they are
	}
	r.ServeConn(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, child := range s.children {
		_ = child.Process.Kill()
		_ = child.Wait()
	}
}

// reach connects to the server: the other host's, or one within this process.
func (o *options) reach() (*rpc.Client, error) {
	if o.connect != "" {
		return rpc.Dial("tcp", net.JoinHostPort(o.connect, port))
	}
	near, far := net.Pipe()
	go newServer(*o).serveClient(far)
	return rpc.NewClient(near), nil
}

// Facts returns those of the server's host.
func (s *Server) Facts(_ struct{}, rows *[][]string) (err error) {
	*rows, err = s.facts(context.Background())
	if len(*rows) > 0 {
		err = nil
	}
	return err
}

// Child is a process of the server.
type Child struct {
	ID      int
	Address string
}

// StartPeer starts an echo server of ringnet at an address of the server's device.
func (s *Server) StartPeer(host string, out *Child) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return s.start(out, self, "-peer", host)
}

// StartBenchmarks starts the benchmarks' server for one client.
func (s *Server) StartBenchmarks(_ struct{}, out *Child) error {
	return s.start(out, s.program("benchmarks"), "-once", "-listen", ":0")
}

func (s *Server) start(out *Child, program string, args ...string) error {
	if _, err := exec.LookPath(program); err != nil {
		return notBuilt(program)
	}
	child := exec.Command(program, args...)
	var said strings.Builder
	child.Stderr = &said
	lines, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(lines).ReadString('\n')
	if err != nil {
		return errors.Join(fmt.Errorf("%s has not begun to listen: %w", program, err), child.Wait(), errors.New(lastLine(said.String())))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.children[s.last] = child
	*out = Child{s.last, strings.TrimSpace(strings.TrimPrefix(line, listening))}
	return nil
}

// Kill kills a child, and waits until it is gone.
func (s *Server) Kill(id int, _ *struct{}) error {
	s.mu.Lock()
	child, ok := s.children[id]
	delete(s.children, id)
	s.mu.Unlock()
	if !ok {
		return fmt.Errorf("no process %d", id)
	}
	err := child.Process.Kill()
	_ = child.Wait() // which says that it was killed
	return err
}

// bePeer is the echo server.
func bePeer(host string) error {
	l, err := ringnet.Listen("rdma", net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	fmt.Println(listening + l.Addr().String())
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
