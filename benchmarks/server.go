package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/rpc"
	"os"
	"sync"

	"github.com/ringnet/ringnet/internal/perf"
)

// Server is the other process, as package net/rpc calls it.
type Server struct {
	mu       sync.Mutex // guards what follows
	lastID   int
	services map[int]func() // functions that end each
	tools    map[int]*runningTool
}

func newServer() *Server {
	return &Server{services: make(map[int]func()), tools: make(map[int]*runningTool)}
}

// serveControl serves clients one after the other, or just one.
func serveControl(l net.Listener, once bool) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if err := serveClient(c); err != nil || once {
			return err
		}
	}
}

func serveClient(c net.Conn) error {
	s := newServer()
	r := rpc.NewServer()
	if err := r.Register(s); err != nil {
		return err
	}
	r.ServeConn(c)
	s.closeAll()
	return nil
}

// Service says what to listen for.
type Service struct {
	Peer     string
	Host     string // the address to listen on
	Protocol string // see protocols
}

type Listening struct {
	ID      int
	Address string
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
	"take": func(l net.Listener) func() {
		var t taker
		return acceptAll(l, func(c net.Conn) {
			if err := t.serve(c); err != nil {
				fmt.Fprintln(os.Stderr, "take:", err)
			}
		})
	},
	"http": func(l net.Listener) func() {
		body := make([]byte, httpBytes)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = w.Write(body)
		})}
		go func() { _ = s.Serve(l) }()
		return func() { s.Close() }
	},
	"grpc": func(l net.Listener) func() {
		s := newGRPCServer()
		go func() { _ = s.Serve(l) }()
		return s.Stop
	},
}

// The servers of messages. echoes is the bystander's own.
var (
	echoes   = perf.MessageServer{MaxSize: 1 << 30}
	messages = perf.MessageServer{MaxSize: 1 << 30, Own: map[int]func(net.Conn) error{bystander: serveBystander}}
)

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

// Listen starts a service.
func (s *Server) Listen(in Service, out *Listening) error {
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
	end := serve(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID++
	s.services[s.lastID] = end
	*out = Listening{s.lastID, l.Addr().String()}
	return nil
}

// Close ends a service.
func (s *Server) Close(id int, _ *struct{}) error {
	s.mu.Lock()
	end, ok := s.services[id]
	delete(s.services, id)
	s.mu.Unlock()
	if !ok {
		return fmt.Errorf("no service %d", id)
	}
	end()
	return nil
}

func (s *Server) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, end := range s.services {
		end()
	}
	for _, t := range s.tools {
		t.kill()
	}
}

// Usage returns what this process has used.
func (s *Server) Usage(_ struct{}, out *perf.Usage) error {
	*out = perf.OwnUsage()
	return nil
}

// Footprint returns what this process holds.
func (s *Server) Footprint(_ struct{}, out *Footprint) error {
	*out = footprint()
	return nil
}

// StartTool starts the serving side of a program.
func (s *Server) StartTool(in ToolRun, id *int) error {
	t, err := in.server().start()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID++
	s.tools[s.lastID] = t
	*id = s.lastID
	return nil
}

// EndTool waits until the program has ended, or kills it.
func (s *Server) EndTool(in EndTool, out *ToolResult) error {
	s.mu.Lock()
	t, ok := s.tools[in.ID]
	delete(s.tools, in.ID)
	s.mu.Unlock()
	if !ok {
		return errors.New("no such program runs")
	}
	if in.Now {
		t.kill()
	}
	*out = t.wait()
	return nil
}

// EndTool says for which program to wait, and whether to kill it.
type EndTool struct {
	ID  int
	Now bool
}
