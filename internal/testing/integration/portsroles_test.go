//go:build linux

package integration_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
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

// The processes of TestPorts: the roles "ports server" and "ports client" of this test binary.

// portsPort is the server's, and portsAuto that of its listener of auto.
const portsPort, portsAuto = "7186", "7188"

// portsHello begins a connection: so many bytes follow, and so many are to come back. The bytes of both
// directions are functions of ID and their places.
type portsHello struct {
	ID       uint64
	Up, Down uint32
}

func (h portsHello) stream() *stream {
	return &stream{seed: h.ID * 0x9e3779b97f4a7c15 >> 1}
}

// portsEnd is what an end of a connection has seen.
type portsEnd struct {
	Up, Down int    // bytes written or read
	Error    string // the first; "" if all was as it should be
	Link     string // whose it is: its addresses
	Where    string // the connection's addresses, and when it began and ended
}

// portsReport is what a process has seen since its last.
type portsReport struct {
	Ends      map[uint64]*portsEnd
	Failed    map[string]int // dials, by their error
	Wrong     []string       // errors that Dial must not return
	Strangers []*portsEnd    // connections without a hello that were not to be accepted
	Unmet     int            // connections without a hello
	Links     []string       // what became of links, and of dials that have failed
	Moves     uint64         // of these
}

// of returns what became of a connection's link, at either side.
func (r *portsReport) of(e *portsEnd) (lines []string) {
	local, remote, _ := strings.Cut(e.Link, " to ")
	for _, line := range r.Links {
		if strings.Contains(line, " "+e.Link+" ") || strings.Contains(line, " "+remote+" to "+local+" ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// failedDials returns the dials that have failed.
func (r *portsReport) failedDials() (lines []string) {
	for _, line := range r.Links {
		if strings.Contains(line, dialFailed) {
			lines = append(lines, line)
		}
	}
	return lines
}

const dialFailed = " a dial failed: "

func (r *portsReport) add(o *portsReport) {
	if r.Ends == nil {
		r.Ends, r.Failed = make(map[uint64]*portsEnd), make(map[string]int)
	}
	maps.Copy(r.Ends, o.Ends)
	for what, n := range o.Failed {
		r.Failed[what] += n
	}
	r.Wrong, r.Links, r.Moves = append(r.Wrong, o.Wrong...), append(r.Links, o.Links...), r.Moves+o.Moves
}

// portsLog is what a process sees.
type portsLog struct {
	mu sync.Mutex // guards what follows
	portsReport
	moved uint64          // that earlier reports have
	begun map[string]bool // by the address that a link comes from: its first connection has been accepted
}

// report says what there is, and forgets it.
func (g *portsLog) report() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := ringnet.Totals()["rdma"].LinksMoved
	g.Moves, g.moved = all-g.moved, all
	r := g.portsReport
	g.portsReport = portsReport{}
	return sayJSON(r)
}

// ended notes what an end has seen.
func (g *portsLog) ended(c net.Conn, h portsHello, e *portsEnd, began time.Time, err error) {
	e.place(c, began)
	e.Where += fmt.Sprintf(", %+v", h)
	if err != nil {
		e.Error = err.Error()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Ends == nil {
		g.Ends = make(map[uint64]*portsEnd)
	}
	g.Ends[h.ID] = e
}

// place notes where and when the connection was that ends.
func (e *portsEnd) place(c net.Conn, began time.Time) {
	e.Where = fmt.Sprintf("%v to %v, %s to %s", c.LocalAddr(), c.RemoteAddr(), clock(began), clock(time.Now()))
	if l, ok := c.(linked); ok {
		e.Link = l.Link().Local.String() + " to " + l.Link().Remote.String()
	}
}

func clock(t time.Time) string { return t.Format("15:04:05.000000") }

// trace notes what becomes of links.
func (g *portsLog) trace() *ringnet.Trace {
	note := func(what string, l ringnet.LinkInfo, err error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.Links = append(g.Links, fmt.Sprintf("%s %s %v to %v : %v", clock(time.Now()), what, l.Local, l.Remote, err))
	}
	return &ringnet.Trace{
		LinkUp: func(l ringnet.LinkInfo) {
			note("up", l, nil)
			g.mu.Lock()
			defer g.mu.Unlock()
			delete(g.begun, l.Remote.String())
		},
		LinkMoved: func(l ringnet.LinkInfo, _ time.Duration, cause error) { note("moved", l, cause) },
		LinkDown:  func(l ringnet.LinkInfo, err error) { note("down", l, err) },
	}
}

// portsConfig notices soon that nothing comes through, and closes for longer than a link may seek another path.
func portsConfig() ringnet.Config {
	return ringnet.Config{KeepAlive: time.Second, Linger: time.Minute, RecvBuffer: 64 << 10, SendBuffer: 64 << 10}
}

// portsServer is the role of the server.
func portsServer(args []string) error {
	g, cfg := new(portsLog), portsConfig()
	lc := ringnet.ListenConfig{Config: &cfg, Trace: g.trace()}
	for network, port := range map[string]string{"rdma": portsPort, "auto": portsAuto} {
		l, err := lc.Listen(context.Background(), network, ":"+port)
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go g.serve(network, c)
			}
		}()
	}
	for say("done"); ; {
		var n int
		if _, err := fmt.Sscanf(hear(), "report %d", &n); err != nil {
			return nil
		}
		if !eventually(func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.Ends) >= n
		}) {
			stacks := make([]byte, 1<<20)
			fmt.Fprintf(os.Stderr, "%s\n", stacks[:runtime.Stack(stacks, true)])
		}
		if err := g.report(); err != nil {
			return err
		}
	}
}

// serve plays the server's part of a connection.
func (g *portsLog) serve(network string, c net.Conn) {
	began := time.Now()
	first := g.beginsLink(c)
	_ = c.SetDeadline(began.Add(hang.After))
	var h portsHello
	if err := binary.Read(c, binary.BigEndian, &h); err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		if network == "auto" || !first { // the dial has taken TCP, or another link
			if g.Unmet++; !errors.Is(err, io.EOF) {
				_ = c.Close()
				return
			}
		}
		e := &portsEnd{Error: fmt.Sprintf("%v, %v", err, c.Close())}
		e.place(c, began)
		g.Strangers = append(g.Strangers, e)
		return
	}
	e := new(portsEnd)
	err := h.stream().receiveAll(c, int(h.Up))
	if err == nil {
		e.Up = int(h.Up)
		err = h.stream().send(c, int(h.Down), pieces)
		e.Down = int(h.Down)
	}
	if err == nil && h.Down > 0 {
		err = c.(halfCloser).CloseWrite()
	}
	g.ended(c, h, e, began, errors.Join(err, c.Close()))
}

// linked is a connection on a link.
type linked interface{ Link() ringnet.LinkInfo }

// beginsLink reports whether a connection that has been accepted is the one with which its link was made. A later
// one may come from the same port, when the first is over.
func (g *portsLog) beginsLink(c net.Conn) bool {
	l, ok := c.(linked)
	if !ok {
		return false
	}
	from := l.Link().Remote.String()
	g.mu.Lock()
	defer g.mu.Unlock()
	if from != c.RemoteAddr().String() || g.begun[from] {
		return false
	}
	if g.begun == nil {
		g.begun = make(map[string]bool)
	}
	g.begun[from] = true
	return true
}

// halfCloser is a connection, over whatever network.
type halfCloser interface{ CloseWrite() error }

// portsClient is the role of a client of the server at some addresses.
func portsClient(args []string) error {
	g := new(portsLog)
	trace := g.trace()
	for say("done"); ; {
		var first, seed uint64
		var length time.Duration
		var text string
		if _, err := fmt.Sscanf(hear(), "%d %d %s", &first, &seed, &text); err != nil {
			return nil
		}
		length, err := time.ParseDuration(text)
		if err != nil {
			return err
		}
		var all sync.WaitGroup
		for i, end := uint64(0), time.Now().Add(length); i < 6; i++ {
			r := rand.New(rand.NewPCG(seed, i))
			all.Go(func() {
				for id := first + i<<24; time.Now().Before(end); id++ {
					g.visit(r, id, trace, args[r.IntN(len(args))])
				}
			})
		}
		all.Wait()
		if err := g.report(); err != nil {
			return err
		}
	}
}

// visit makes a connection, and ends it soon.
func (g *portsLog) visit(r *rand.Rand, id uint64, trace *ringnet.Trace, host string) {
	cfg := portsConfig()
	cfg.Dedicated = r.IntN(2) == 0
	cfg.LinkIdle = []time.Duration{-1, 50 * time.Millisecond, 0}[r.IntN(3)]
	network, port := "rdma", portsPort
	if r.IntN(4) == 0 {
		network, port = "auto", portsAuto
	}
	h := portsHello{ID: id, Up: uint32(r.IntN(16 << r.IntN(14)))}
	if r.IntN(2) == 0 {
		h.Down = uint32(1 + r.IntN(16<<r.IntN(14)))
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), hang.After)
	defer cancel()
	c, err := (&ringnet.Dialer{Config: &cfg, Trace: trace}).DialContext(ctx, network, net.JoinHostPort(host, port))
	if err != nil {
		g.notDialed(ctx, network, err)
		return
	}
	e := new(portsEnd)
	g.ended(c, h, e, began, h.talk(r, c, e))
}

// notDialed notes the error of a dial.
func (g *portsLog) notDialed(ctx context.Context, network string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	what := network + ": other"
	var errno syscall.Errno
	if errors.As(err, &errno) {
		what = network + ": " + unix.ErrnoName(errno)
	} else if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		what = network + ": timeout"
	}
	g.Links = append(g.Links, clock(time.Now())+dialFailed+err.Error())
	if g.Failed == nil {
		g.Failed = make(map[string]int)
	}
	g.Failed[what]++
	if ctx.Err() != nil || errno == syscall.ECONNREFUSED || errno == syscall.EPROTO || what == network+": other" {
		g.Wrong = append(g.Wrong, fmt.Sprintf("%s at %s: %v", what, clock(time.Now()), err))
	}
}

// talk plays the client's part of a connection: at times it closes without a CloseWrite, if it has nothing to read.
func (h portsHello) talk(r *rand.Rand, c net.Conn, e *portsEnd) error {
	_ = c.SetDeadline(time.Now().Add(hang.After))
	err := binary.Write(c, binary.BigEndian, h)
	if r.IntN(4) == 0 {
		time.Sleep(time.Duration(r.IntN(1 << r.IntN(30))))
	}
	if err == nil {
		err = h.stream().send(c, int(h.Up), 1+r.IntN(pieces))
		e.Up = int(h.Up)
	}
	if err == nil && (h.Down > 0 || r.IntN(2) == 0) {
		err = c.(halfCloser).CloseWrite()
	}
	if err == nil && h.Down > 0 {
		err = h.stream().receiveAll(c, int(h.Down))
		e.Down = int(h.Down)
	}
	return errors.Join(err, c.Close())
}
