package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/ringnet/ringnet/benchmarks/process"
	"github.com/ringnet/ringnet/internal/perf/workload"
)

// Server is the other process, as package net/rpc calls it. It ends services by their addresses, and
// programs by their ports.
type Server struct{ process.Ends }

func newServer() process.Server { return new(Server) }

// Service says what to listen for.
type Service struct {
	Peer     string
	Host     string // the address to listen on
	Protocol string // see protocols
}

// protocols serve a listener until it is closed. Each returns a function that closes its
// connections, too.
var protocols = map[string]func(l net.Listener) (closeAll func()){
	"messages": func(l net.Listener) func() {
		return acceptAll(l, func(c net.Conn) {
			defer c.Close()
			_ = messages.Serve(c) // the client sees what fails
		})
	},
	"once": func(l net.Listener) func() {
		return acceptAll(l, func(c net.Conn) {
			b := make([]byte, 1)
			if _, err := c.Read(b); err == nil {
				_, _ = c.Write(b)
			}
		})
	},
	"pair": func(l net.Listener) func() {
		return acceptAll(l, func(c net.Conn) { accepted <- c })
	},
	"http": func(l net.Listener) func() {
		s := &http.Server{Handler: http.HandlerFunc(workload.HTTPHandler)}
		go func() { _ = s.Serve(l) }()
		return func() { s.Close() }
	},
	"grpc": func(l net.Listener) func() {
		s := newGRPCServer()
		go func() { _ = s.Serve(l) }()
		return s.Stop
	},
}

var messages = workload.MessageServer{MaxSize: 1 << 30, Own: map[int]func(net.Conn) error{drop: serveDrop}}

// acceptAll accepts connections and handles each in a goroutine. closeAll closes the
// listener and the connections.
func acceptAll(l net.Listener, handle func(net.Conn)) (closeAll func()) {
	var mu sync.Mutex
	var conns []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			go handle(c)
		}
	}()
	return func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
	}
}

// Listen starts a service, and returns its address.
func (s *Server) Listen(in Service, out *string) error {
	p, err := findPeer(in.Peer)
	if err != nil {
		return err
	}
	serve, ok := protocols[in.Protocol]
	if !ok || p.listen == nil {
		return fmt.Errorf("no service %q of %q", in.Protocol, in.Peer)
	}
	l, err := p.listen(in.Host)
	if err != nil {
		return err
	}
	*out = l.Addr().String()
	s.Put(*out, serve(l))
	return nil
}

// Usage returns what this process has used.
func (*Server) Usage(_ struct{}, out *workload.Usage) error {
	*out = workload.OwnUsage()
	return nil
}

// Memory returns what this process holds.
func (*Server) Memory(_ struct{}, out *float64) error {
	*out = ownMemory()
	return nil
}

// RunTool runs the serving side of a program to its end, which may be that by Close.
func (s *Server) RunTool(in ToolRun, _ *struct{}) error {
	ctx, cancel := context.WithCancel(context.Background())
	s.Put(in.key(), cancel)
	_, err := in.run(ctx, true)
	_ = s.Close(in.key(), nil)
	return err
}
