package process

import (
	"net"
	"net/rpc"
	"sync"
)

// A Server is the other end, as package net/rpc calls it. It has one client.
type Server interface {
	// Gone is called when the client has gone.
	Gone()
}

// Ends end what a client has started. A Server embeds them.
type Ends struct {
	mu    sync.Mutex // guards byKey
	byKey map[string]func()
}

// Put has Close, or Gone, call end.
func (e *Ends) Put(key string, end func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byKey == nil {
		e.byKey = make(map[string]func())
	}
	e.byKey[key] = end
}

// Close ends what has the key, if it has not ended.
func (e *Ends) Close(key string, _ *struct{}) error {
	e.mu.Lock()
	end, ok := e.byKey[key]
	delete(e.byKey, key)
	e.mu.Unlock()
	if ok {
		end()
	}
	return nil
}

// Gone ends all.
func (e *Ends) Gone() {
	for _, end := range e.byKey {
		end()
	}
}

// Serve serves a client, from its connection on to the end.
func Serve(c net.Conn, servers ...Server) {
	r := rpc.NewServer()
	for _, s := range servers {
		if err := r.Register(s); err != nil {
			panic(err) // methods are what they are
		}
		defer s.Gone()
	}
	r.ServeConn(c)
}

// Within returns a client of a server in this process.
func Within(s Server) *rpc.Client {
	near, far := net.Pipe()
	go Serve(far, s)
	return rpc.NewClient(near)
}

// ServeAll serves the clients of a listener, each with servers of its own.
func ServeAll(l net.Listener, servers func() []Server) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go Serve(c, servers()...)
	}
}
