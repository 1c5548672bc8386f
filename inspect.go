package ringnet

// What `ringnet ss` shows of this process, and how `ringnet kill` ends a connection.

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/inspect"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/pollers"
	"github.com/ringnet/ringnet/rconn"
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

// asked answers those who ask for the links and connections of this process.
var asked = inspect.New(describeProcess)

// enter has a connection, that of a *Conn or *auto.TCPConn, be among those of this process.
func (c *connection) enter(key any) {
	asked.Hold()
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

// ended is called when the connection has ended.
func (c *connection) ended(end rconn.End) {
	connections.mu.Lock()
	delete(connections.open, c.key)
	connections.mu.Unlock()
	asked.Release()
	totals.count(c.Carrier, func(t *NetworkTotals) { t.Closed++ })
	if c.trace != nil && c.trace.Closed != nil {
		c.Age = time.Since(c.began)
		c.Stats, c.Err, c.Dropped = end.Stats, end.Err, end.Dropped
		c.trace.Closed(c.CloseEvent)
	}
}

// keyOf returns the key of a connection in connections.open, which does not keep it.
func keyOf(s stream) any {
	if c, ok := s.(*Conn); ok {
		return weak.Make(c)
	}
	return weak.Make(s.(*auto.TCPConn))
}

// notePassedOver notes why no better network carries the connection of s.
func notePassedOver(s stream, reasons []Reason) {
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

// describeProcess describes this process, once it has carried out the request.
func describeProcess(r inspect.Request) inspect.Process {
	p := inspect.Process{
		Program: filepath.Base(os.Args[0]),
		Memory:  inspect.Memory(Memory()),
		Polling: int64(pollers.Time()),
	}
	if r.Kill != 0 {
		if err := kill(r.Kill); err != nil {
			p.Error = err.Error()
		}
		return p
	}
	for _, i := range link.List() {
		l := rconn.LinkInfoOf(i)
		p.Links = append(p.Links, inspect.Link{
			Info: i, Local: l.Local.String(), Remote: l.Remote.String(),
			PathLocal: l.Path.Local.String(), PathRemote: l.Path.Remote.String(),
		})
	}
	enough, cancel := context.WithTimeout(context.Background(), describing)
	defer cancel()
	busy := make(map[*link.Link]bool)
	for _, c := range openConnections() {
		p.Connections = append(p.Connections, c.describe(enough.Done(), busy))
	}
	return p
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
