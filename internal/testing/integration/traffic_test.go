//go:build linux

package integration_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// Mixed traffic between two processes, over rdma and over TCP at once: the roles "traffic
// server" and "traffic client" of this test binary. Every byte is checked.

// kinds are the connections of each network. They rest between their exchanges, so that
// emulated machines are not busy and pauses come only from faults.
var kinds = []struct {
	name     string
	n        int
	up, down int           // bytes at once, at most
	rest     time.Duration // between exchanges; 0: there is one first, and one in the end
}{
	{"up", 2, pieces, 0, 40 * time.Millisecond}, // bulk from the client, which waits for no answer
	{"down", 2, 0, pieces, 40 * time.Millisecond},
	{"both", 8, 32 << 10, 32 << 10, 30 * time.Millisecond},
	{"idle", 4, 4 << 10, 4 << 10, 0},
}

// pieces are what is written at once, at most.
const pieces = 64 << 10

// trafficPorts are the ports of a server.
var trafficPorts = map[string]string{"rdma": "7180", "tcp": "7182"}

// observed is what one end has seen of a connection of the traffic.
type observed struct {
	Network, Kind string
	Bytes         int           // read and written
	Pause         time.Duration // the longest time without a byte read or written
	Error         string        // the errno's name of the error that ended the connection, or more
	Cause         string        // all of its text

	mu    sync.Mutex
	moved time.Time // when bytes were last read or written
	conn  net.Conn
}

// stillWaits is the error of a connection that neither goes on nor ends.
const stillWaits = "still waits"

// note counts bytes that were read or written, and keeps an error.
func (m *observed) note(n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if n > 0 || err != nil {
		if !m.moved.IsZero() && m.Error == "" && m.Kind != "idle" {
			m.Pause = max(m.Pause, now.Sub(m.moved))
		}
		m.moved = now
	}
	m.Bytes += n
	if err != nil && m.Error == "" {
		m.Cause = err.Error()
	}
	var errno syscall.Errno
	switch {
	case err == nil || m.Error != "":
	case errors.As(err, &errno):
		m.Error = unix.ErrnoName(errno)
	case errors.Is(err, os.ErrDeadlineExceeded):
		m.Error = stillWaits
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		m.Error = "EOF"
	default:
		m.Error = err.Error()
	}
}

// progress returns how many bytes have been read and written, and whether the connection
// has ended.
func (m *observed) progress() (bytes int, ended bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Bytes, m.Error != ""
}

// noted is a connection whose calls are observed. The end of the stream counts as no error,
// and neither does a deadline, with which net/http ends a Read.
type noted struct {
	net.Conn
	m *observed
}

func (c noted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.note(n, err)
	return n, err
}

func (c noted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.note(n, err)
	return n, err
}

func (c noted) note(n int, err error) {
	if err == io.EOF || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	c.m.note(n, err)
}

// traffic is all connections of a process.
type traffic struct {
	mu            sync.Mutex
	members       []*observed
	under         sync.WaitGroup // the client's connections
	begin, finish chan struct{}  // closed to have the client's begin, and finish
}

func newTraffic() *traffic {
	return &traffic{begin: make(chan struct{}), finish: make(chan struct{})}
}

// join adds a connection.
func (tr *traffic) join(m *observed) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.members = append(tr.members, m)
}

// report prints what has been observed.
func (tr *traffic) report() error {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, m := range tr.members {
		m.mu.Lock()
		defer m.mu.Unlock()
	}
	return sayJSON(tr.members)
}

// restart forgets earlier pauses. One that begins before the next byte counts from here on.
func (tr *traffic) restart() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, m := range tr.members {
		m.mu.Lock()
		m.Pause, m.moved = 0, time.Now()
		m.mu.Unlock()
	}
}

// rest waits, and returns false when it is time to finish.
func (tr *traffic) rest(d time.Duration) bool {
	select {
	case <-tr.finish:
		return false
	case <-time.After(d):
		return true
	}
}

// trafficServer is the role of a server, which may be patient.
func trafficServer(args []string) error {
	tr, lc := newTraffic(), ringnet.ListenConfig{}
	if args[0] == "patient" {
		lc.Config = patient()
	}
	for network, port := range trafficPorts {
		listen := lc.Listen
		if network == "tcp" {
			listen = new(net.ListenConfig).Listen
		}
		l, err := listen(context.Background(), network, ":"+port)
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go tr.serve(network, c)
			}
		}()
	}
	for say("done"); ; {
		var err error
		switch what := hear(); what {
		case "restart":
			tr.restart()
			say("done")
		case "report":
			err = tr.report()
		case "state":
			err = sayJSON(reported())
		case "stacks":
			b := make([]byte, 1<<20)
			err = sayJSON(string(b[:runtime.Stack(b, true)]))
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// hello begins a connection of the traffic.
type hello struct {
	Kind uint64 // an index of kinds, or unobserved
	Seed uint64 // of the streams of both directions
}

// unobserved is the kind of connections of which a server keeps nothing.
const unobserved = 1 << 63

// request is a message to the server: so many bytes follow, and so many are asked for.
type request struct{ Up, Down uint32 }

// serve plays the server's part of a connection.
func (tr *traffic) serve(network string, c net.Conn) {
	defer c.Close()
	var h hello
	if binary.Read(c, binary.BigEndian, &h) != nil {
		return
	}
	m := &observed{Network: network, conn: c}
	if h.Kind != unobserved {
		m.Kind = kinds[h.Kind].name
		tr.join(m)
	}
	end := noted{c, m}
	in, out := stream{seed: h.Seed}, stream{seed: h.Seed}
	for {
		var x request
		err := binary.Read(end, binary.BigEndian, &x)
		if err == io.EOF {
			return
		}
		if err == nil {
			err = in.receive(end, int(x.Up))
		}
		if err == nil && x.Down > 0 {
			err = out.send(end, int(x.Down), pieces)
		}
		if m.note(0, err); err != nil {
			return
		}
	}
}

// trafficClient is the role of a client of the server at a host. It reads lines that tell
// it to begin, to report when the traffic goes on or has ended, and to finish and print
// what it has observed.
func trafficClient(args []string) error {
	tr := newTraffic()
	for network := range trafficPorts {
		for i, kind := range kinds {
			for range kind.n {
				if err := tr.dial(network, args[0], i); err != nil {
					return err
				}
			}
		}
	}
	say("done")
	for {
		switch what := hear(); what {
		case "begin":
			close(tr.begin)
			say("done")
		case "restart":
			tr.restart()
			say("done")
		case "flow", "end":
			say(tr.settle(what == "end"))
		case "finish":
			tr.mu.Lock()
			for _, m := range tr.members {
				_ = m.conn.SetDeadline(time.Now().Add(hang.After))
			}
			tr.mu.Unlock()
			close(tr.finish)
			tr.under.Wait()
			return tr.report()
		default:
			return fmt.Errorf("no such command: %q", what)
		}
	}
}

// settleTime is how long TCP may take to go on, or to end: it waits twice as long before
// each repetition of a packet as before the last.
const settleTime = 30 * time.Second

// settle waits until each connection has either gone on or ended, and those of rdma that
// must end have ended. It returns those that have not in time.
func (tr *traffic) settle(toEnd bool) string {
	began, before := time.Now(), make([]int, len(tr.members))
	for i, m := range tr.members {
		before[i], _ = m.progress()
	}
	var waiting []string
	eventually(func() bool {
		waiting = nil
		late := time.Since(began) > settleTime
		for i, m := range tr.members {
			n, ended := m.progress()
			if !ended && (toEnd && m.Network == "rdma" || n == before[i] && m.Kind != "idle") {
				if m.Network == "rdma" || !late {
					waiting = append(waiting, m.Kind)
				}
			}
		}
		return len(waiting) == 0
	})
	if len(waiting) == 0 {
		return "done"
	}
	return fmt.Sprintf("%s: %+v", strings.Join(waiting, ", "), ringnet.Links())
}

// dial adds a connection.
func (tr *traffic) dial(network, host string, kind int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dial := new(ringnet.Dialer).DialContext
	if network == "tcp" {
		dial = new(net.Dialer).DialContext
	}
	c, err := dial(ctx, network, net.JoinHostPort(host, trafficPorts[network]))
	if err != nil {
		return err
	}
	m := &observed{Network: network, Kind: kinds[kind].name, conn: c}
	tr.join(m)
	end, err := talk(noted{c, m}, uint64(kind), rand.Uint64(), pieces)
	if err != nil {
		return err
	}
	tr.under.Go(func() {
		defer c.Close()
		<-tr.begin
		m.note(0, tr.converse(end, kind))
	})
	return nil
}

// converse plays the client's part of a connection. The answer to the last exchange shows that the
// server has received all.
func (tr *traffic) converse(end *talker, kind int) error {
	k := kinds[kind]
	exchange := func() error { return end.exchange(rand.IntN(k.up+1), rand.IntN(k.down+1)) }
	if k.rest == 0 {
		if err := exchange(); err != nil {
			return err
		}
		go func() {
			<-tr.finish
			_ = end.ask(1, 1) // the Read has the error, too
		}()
		return end.in.receive(end, 1)
	}
	for tr.rest(k.rest) {
		if err := exchange(); err != nil {
			return err
		}
	}
	return end.exchange(1, 1)
}
