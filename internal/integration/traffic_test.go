//go:build linux

package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/hang"
)

// Mixed traffic between two processes, over rdma and over TCP at once: the roles "traffic
// server" and "traffic client" of this test binary. Every byte is checked.

// kinds are the connections of each network. They rest between their messages, so that
// emulated machines are not busy and pauses come only from faults.
var kinds = []struct {
	name string
	n    int
	most int           // bytes at once
	rest time.Duration // between messages
}{
	{"up", 2, 64 << 10, 40 * time.Millisecond},   // bulk from the client
	{"down", 2, 64 << 10, 40 * time.Millisecond}, // bulk to it
	{"ping", 4, 4 << 10, 20 * time.Millisecond},  // and the same back
	{"http", 4, 64 << 10, 40 * time.Millisecond}, // POST, and as much back; each end sends the hashes
	{"idle", 4, 4 << 10, 0},                      // one ping first, and one in the end
}

// trafficPorts are the ports of a server: for connections that begin with their kind, and
// for net/http.
var trafficPorts = map[string][2]string{"rdma": {"7180", "7181"}, "tcp": {"7182", "7183"}}

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

func (c noted) CloseWrite() error { return c.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// pattern is an endless stream of bytes. It is sent in pieces, each after its length, and
// ends with the length 0 and the number of all bytes.
type pattern struct{ from, pos int }

const patternSize = 1<<20 - 3 // a prime

// patternBytes are the bytes of all patterns, which begin at different places.
var patternBytes = sync.OnceValue(func() []byte {
	b := make([]byte, patternSize, patternSize+64<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return append(b, b[:64<<10]...)
})

func (p *pattern) next(n int) []byte {
	at := (p.from + p.pos) % patternSize
	p.pos += n
	return patternBytes()[at : at+n]
}

// send sends the next n bytes.
func (p *pattern) send(w io.Writer, n int) error {
	b := binary.BigEndian.AppendUint32(nil, uint32(n))
	_, err := w.Write(append(b, p.next(n)...))
	return err
}

// end sends the end.
func (p *pattern) end(w io.Writer) error {
	b := make([]byte, 4, 12)
	_, err := w.Write(binary.BigEndian.AppendUint64(b, uint64(p.pos)))
	return err
}

// receive receives the next bytes, and returns how many; 0 at the end.
func (p *pattern) receive(r io.Reader) (int, error) {
	var b [64 << 10]byte
	if _, err := io.ReadFull(r, b[:4]); err != nil {
		return 0, err
	}
	n := int(binary.BigEndian.Uint32(b[:]))
	switch {
	case n > len(b):
		return 0, fmt.Errorf("wrong: %d bytes to come, behind %d", n, p.pos)
	case n == 0:
		_, err := io.ReadFull(r, b[:8])
		if total := binary.BigEndian.Uint64(b[:]); err == nil && total != uint64(p.pos) {
			err = fmt.Errorf("wrong: %d bytes, of %d", p.pos, total)
		}
		return 0, err
	}
	if _, err := io.ReadFull(r, b[:n]); err != nil {
		return 0, err
	}
	if !bytes.Equal(b[:n], p.next(n)) {
		return 0, fmt.Errorf("wrong: bytes among the %d before %d", n, p.pos)
	}
	return n, nil
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
func (tr *traffic) join(network, kind string, c net.Conn) (*observed, noted) {
	m := &observed{Network: network, Kind: kind, conn: c}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.members = append(tr.members, m)
	return m, noted{c, m}
}

// report prints what has been observed.
func (tr *traffic) report() error {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, m := range tr.members {
		m.mu.Lock()
		defer m.mu.Unlock()
	}
	return json.NewEncoder(os.Stdout).Encode(tr.members)
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

// trafficServer is the role of a server.
func trafficServer([]string) error {
	tr := newTraffic()
	for network, ports := range trafficPorts {
		l, err := trafficListen(network, ports[0])
		if err != nil {
			return err
		}
		web, err := trafficListen(network, ports[1])
		if err != nil {
			return err
		}
		go http.Serve(httpListener{web, tr, network}, http.HandlerFunc(hashBoth))
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
		switch what := hear(); what {
		case "restart":
			tr.restart()
			say("done")
		case "report":
			if err := tr.report(); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

func trafficListen(network, port string) (net.Listener, error) {
	if network == "tcp" {
		return net.Listen("tcp", ":"+port)
	}
	return ringnet.Listen(network, ":"+port)
}

// serve plays the server's part of a connection. The first line has its kind, where its
// pattern begins, and the size of its pieces.
func (tr *traffic) serve(network string, c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	var kind string
	var from, most, rest int
	if _, err := fmt.Fscanln(r, &kind, &from, &most, &rest); err != nil {
		return
	}
	m, end := tr.join(network, kind, c)
	p, in := &pattern{from: from}, bufio.NewReader(io.MultiReader(io.LimitReader(r, int64(r.Buffered())), end))
	var err error
	switch kind {
	case "up":
		for n := 1; n > 0 && err == nil; {
			n, err = p.receive(in)
		}
		if err == nil {
			err = p.end(end)
		}
	case "down":
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _ = io.Copy(io.Discard, in)
		}()
		for err == nil {
			select {
			case <-over:
				_ = p.end(end)
				return
			case <-time.After(time.Duration(rest)):
				err = p.send(end, 1+rand.IntN(most))
			}
		}
	default:
		for echo := *p; err == nil; {
			var n int
			if n, err = p.receive(in); err == nil {
				err = echo.send(end, n)
			}
		}
		if err == io.EOF {
			err = nil
		}
	}
	m.note(0, err)
}

// httpListener adds the connections that it accepts to the traffic.
type httpListener struct {
	net.Listener
	tr      *traffic
	network string
}

func (l httpListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	_, counted := l.tr.join(l.network, "http", c)
	return counted, nil
}

// hashBoth answers with as many bytes as it has received, and the hashes of both.
func hashBoth(w http.ResponseWriter, r *http.Request) {
	got, err := io.ReadAll(r.Body)
	from, wrong := strconv.Atoi(r.Header.Get("From"))
	if err = errors.Join(err, wrong); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	body := (&pattern{from: from}).next(len(got))
	w.Header().Set("Got", fmt.Sprintf("%x", sha256.Sum256(got)))
	w.Header().Set("Sent", fmt.Sprintf("%x", sha256.Sum256(body)))
	_, _ = w.Write(body)
}

// trafficClient is the role of a client of the server at a host. It reads lines that tell
// it to begin, to report when the traffic goes on or has ended, and to finish and print
// what it has observed.
func trafficClient(args []string) error {
	tr := newTraffic()
	for network := range trafficPorts {
		for _, kind := range kinds {
			for range kind.n {
				if err := tr.dial(network, args[0], kind.name, kind.most, kind.rest); err != nil {
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
func (tr *traffic) dial(network, host, kind string, most int, rest time.Duration) error {
	ports := trafficPorts[network]
	port, from := ports[0], rand.IntN(patternSize)
	if kind == "http" {
		port = ports[1]
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var c net.Conn
	var err error
	if addr := net.JoinHostPort(host, port); network == "tcp" {
		c, err = new(net.Dialer).DialContext(ctx, network, addr)
	} else {
		c, err = new(ringnet.Dialer).DialContext(ctx, network, addr)
	}
	if err != nil {
		return err
	}
	m, end := tr.join(network, kind, c)
	if kind != "http" {
		if _, err := fmt.Fprintln(end, kind, from, most, int(rest)); err != nil {
			return err
		}
	}
	tr.under.Go(func() {
		defer c.Close()
		<-tr.begin
		m.note(0, map[string]func(noted, *pattern, int, time.Duration) error{
			"up": tr.up, "down": tr.down, "ping": tr.ping, "http": tr.http, "idle": tr.idle,
		}[kind](end, &pattern{from: from}, most, rest))
	})
	return nil
}

func (tr *traffic) up(c noted, p *pattern, most int, rest time.Duration) error {
	for tr.rest(rest) {
		if err := p.send(c, 1+rand.IntN(most)); err != nil {
			return err
		}
	}
	if err := p.end(c); err != nil {
		return err
	}
	_, err := (&pattern{pos: p.pos}).receive(c)
	return err
}

func (tr *traffic) down(c noted, p *pattern, _ int, _ time.Duration) error {
	go func() {
		<-tr.finish
		_ = c.CloseWrite()
	}()
	for in := bufio.NewReader(c); ; {
		if n, err := p.receive(in); n == 0 || err != nil {
			return err
		}
	}
}

func (tr *traffic) ping(c noted, p *pattern, most int, rest time.Duration) error {
	for tr.rest(rest) {
		if err := ping(c, p, 1+rand.IntN(most)); err != nil {
			return err
		}
	}
	return nil
}

// ping sends bytes and receives the same.
func ping(c noted, p *pattern, n int) error {
	back := *p
	if err := p.send(c, n); err != nil {
		return err
	}
	_, err := back.receive(c)
	return err
}

func (tr *traffic) idle(c noted, p *pattern, most int, _ time.Duration) error {
	if err := ping(c, p, 1+rand.IntN(most)); err != nil {
		return err
	}
	last := *p
	go func() {
		<-tr.finish
		_ = last.send(c, most)
	}()
	_, err := p.receive(c)
	return err
}

func (tr *traffic) http(c noted, p *pattern, most int, rest time.Duration) error {
	// An http.Transport would dial again.
	for in := bufio.NewReader(c); tr.rest(rest); {
		body := p.next(1 + rand.IntN(most))
		request, err := http.NewRequest("POST", "http://"+c.RemoteAddr().String(), bytes.NewReader(body))
		if err != nil {
			return err
		}
		from := p.pos % patternSize
		request.Header.Set("From", strconv.Itoa(from))
		if err := request.Write(c); err != nil {
			return err
		}
		resp, err := http.ReadResponse(in, request)
		if err != nil {
			return err
		}
		got, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		want := (&pattern{from: from}).next(len(body))
		if !bytes.Equal(got, want) || resp.Header.Get("Sent") != fmt.Sprintf("%x", sha256.Sum256(got)) ||
			resp.Header.Get("Got") != fmt.Sprintf("%x", sha256.Sum256(body)) {
			return fmt.Errorf("wrong: %s, %d bytes for %d", resp.Status, len(got), len(body))
		}
	}
	return nil
}
