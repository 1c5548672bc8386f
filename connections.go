package ringnet

// The connections of this process, from their beginning to their end.

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/inspect"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/transport"
)

// connection is one of this process, from its beginning to its end.
type connection struct {
	CloseEvent // what is known when it begins
	trace      *Trace
	number     uint64
	began      time.Time

	key    any                        // in connections.open
	stream *link.Stream               // nil over TCP
	tcp    weak.Pointer[auto.TCPConn] // that carries it, or nothing; it may be garbage

	passedOver []Reason // guarded by connections.mu
}

// connections are those of this process.
var connections struct {
	mu   sync.Mutex
	last uint64              // number
	open map[any]*connection // by keyOf
}

// enter has a connection, that of a *Conn or *auto.TCPConn, be among those of this process.
func (c *connection) enter(key any) {
	connections.mu.Lock()
	defer connections.mu.Unlock()
	if connections.open == nil {
		connections.open = make(map[any]*connection)
	}
	connections.last++
	c.number = connections.last
	c.key = key
	connections.open[c.key] = c
}

// leave has it be none of them any more.
func (c *connection) leave() {
	connections.mu.Lock()
	defer connections.mu.Unlock()
	delete(connections.open, c.key)
}

// keyOf returns the key of a connection in connections.open, which does not keep it.
func keyOf(s transport.Conn) any {
	if c, ok := s.(*Conn); ok {
		return weak.Make(c)
	}
	return weak.Make(s.(*auto.TCPConn))
}

// notePassedOver notes why no better network carries the connection of s.
func notePassedOver(s transport.Conn, reasons []Reason) {
	connections.mu.Lock()
	defer connections.mu.Unlock()
	if c := connections.open[keyOf(s)]; c != nil {
		c.passedOver = reasons
	}
}

// openConnections returns the connections of this process, the oldest first.
func openConnections() []*connection {
	connections.mu.Lock()
	all := slices.Collect(maps.Values(connections.open))
	connections.mu.Unlock() // a link may wait for it
	slices.SortFunc(all, func(a, b *connection) int { return int(a.number) - int(b.number) })
	return all
}

// describing is how long links may keep one who asks waiting, altogether: less than who asks waits.
const describing = time.Second

// describe says what the connection is doing. It waits for no link that is busy, with something that holds its lock
// until enough is closed, but notes it.
func (c *connection) describe(enough <-chan struct{}, busy map[*link.Link]bool) inspect.Connection {
	d := inspect.Connection{
		Number: c.number, Carrier: c.Carrier, Local: c.Local.String(), Remote: c.Remote.String(),
		Dialed: c.Dialed, Began: c.began,
	}
	connections.mu.Lock()
	for _, r := range c.passedOver {
		d.PassedOver = append(d.PassedOver, inspect.PassedOver{Network: r.Network, Code: string(r.Code), Error: r.Err.Error()})
	}
	connections.mu.Unlock()
	if c.stream != nil {
		d.State = "busy"
		if l := c.stream.Link(); !busy[l] {
			if now, known := c.stream.State(enough); known {
				d.StreamState = now
			} else {
				busy[l] = true
			}
		}
	} else if tcp := c.tcp.Value(); tcp != nil {
		d.StreamState = link.StreamState{StreamStats: link.StreamStats(tcp.Stats()), State: "open"}
	}
	return d
}

// kill ends the connection with a number.
func kill(number uint64) error {
	all := openConnections()
	i := slices.IndexFunc(all, func(c *connection) bool { return c.number == number })
	switch {
	case i < 0:
		return fmt.Errorf("it has no connection %d", number)
	case all[i].stream == nil:
		return fmt.Errorf("TCP carries connection %d: ss --kill ends it", number)
	}
	aborted := make(chan error, 1)
	go func() { aborted <- all[i].stream.Abort() }()
	select {
	case err := <-aborted:
		return err
	case <-time.After(describing):
		return fmt.Errorf("the link of connection %d is busy: it ends when that is over", number)
	}
}
