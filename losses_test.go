package ringnet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// TestLinksLostUnderLoad has two hosts exchange bytes over as many connections as fit, in
// real time, with polling and the default queues, while their links lose queue pairs at the
// worst moments: behind a message that was just posted, while a move is under way, with all
// connections about to write at once. No call may fail, no byte may be lost, doubled or
// foreign, nothing may wait for ever, and nothing may be left.
//
// RINGNET_SOAK_LOSSES is for how long at least: there are rounds until everything has happened
// that is counted. RINGNET_SOAK_SEED is what is drawn; the order of goroutines is not.
func TestLinksLostUnderLoad(t *testing.T) {
	length, err := time.ParseDuration(cmp.Or(os.Getenv("RINGNET_SOAK_LOSSES"), "2s"))
	require.NoError(t, err, "RINGNET_SOAK_LOSSES, a duration")
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("RINGNET_SOAK_SEED"), strconv.FormatInt(time.Now().UnixNano(), 10)), 10, 64)
	require.NoError(t, err, "RINGNET_SOAK_SEED, a number")
	t.Log("RINGNET_SOAK_SEED", seed)
	var sum lossTally
	end := time.Now().Add(length)
	for n := uint64(0); (time.Now().Before(end) || !sum.complete()) && !t.Failed(); n++ {
		newLossRound(t, rand.New(rand.NewPCG(seed, n)), &sum).run(min(time.Until(end), 5*time.Second))
		t.Log(&sum)
	}
}

// lossTally is what has happened in all rounds.
type lossTally struct {
	faults, connections, failedDials, exchanges, bytes, moves atomic.Int64
}

func (s *lossTally) String() string {
	return fmt.Sprintf("%d faults, %d moves, %d connections (%d dials failed), %d exchanges, %d MB",
		s.faults.Load(), s.moves.Load(), s.connections.Load(), s.failedDials.Load(), s.exchanges.Load(), s.bytes.Load()>>20)
}

// complete reports whether all of it has happened, so that the test has tried something.
func (s *lossTally) complete() bool {
	return s.moves.Load() > 0 && s.exchanges.Load() > 0 && s.bytes.Load() > 0
}

// lossRound is one network, with one listener and what goes on there.
type lossRound struct {
	t   *testing.T
	r   *rand.Rand // of the goroutine that breaks things
	n   *sim.Network
	sum *lossTally
	d   Dialer

	storm  bool            // nearly all write at once on one link, which has more under way when it is lost than a call posts again
	most   int             // kind of all but a few connections
	ctx    context.Context // of dials: ends with the round
	cancel context.CancelFunc

	fatal atomic.Int64 // so many messages from now on one is not acknowledged
	lost  atomic.Int64 // so many messages of the connection manager are lost

	listener  net.Listener
	first     sync.Once
	connected chan struct{} // closed when there has been a connection

	mu     sync.Mutex
	chorus chan struct{} // closed when all are to write
}

var lossCards = []netip.Addr{
	netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.1.1"), // the dialer's
	netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.1.2"),
}

func newLossRound(t *testing.T, r *rand.Rand, sum *lossTally) *lossRound {
	w := &lossRound{t: t, r: r, sum: sum, storm: r.IntN(2) == 0, most: r.IntN(len(lossKinds)), connected: make(chan struct{}), chorus: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(t.Context())
	w.n = sim.New(sim.Link{
		Latency: []time.Duration{0, 50 * time.Microsecond, 300 * time.Microsecond, 3 * time.Millisecond}[r.IntN(4)],
		Jitter:  []time.Duration{0, 0, 200 * time.Microsecond}[r.IntN(3)],
		Seed:    r.Uint64(),
		Spin:    []int{0, 100, 400}[r.IntN(3)],
	})
	w.n.SetFaults(sim.Faults{
		Send: func(*sim.Endpoint, *fabric.WorkRequest) fabric.Status {
			if w.fatal.Load() > 0 && w.fatal.Add(-1) == 0 {
				return fabric.RetryExceeded
			}
			return fabric.OK
		},
		Lose: func(*sim.Endpoint, sim.Message) bool { return w.lost.Load() > 0 && w.lost.Add(-1) >= 0 },
	})
	cards := 1 + r.IntN(2)
	for i, name := range []string{"east", "west"} {
		var own []fabric.Card
		for _, a := range lossCards[2*i : 2*i+cards] {
			own = append(own, fabric.Card{a})
		}
		host := w.n.Host(own...)
		addNetwork(t, name, network{&carrier{name: name, open: opens(host)}, "ip"})
	}
	cfg := &Config{ResumeTimeout: 10 * time.Minute, Linger: 5 * time.Minute, KeepAlive: time.Second, LinkIdle: -1, Links: 1 + r.IntN(2)}
	if w.storm {
		cfg.Links, w.most = 1, slices.IndexFunc(lossKinds, func(k lossKind) bool { return k.name == "chorus" })
	}
	trace := &Trace{LinkMoved: func(LinkInfo, time.Duration, error) { sum.moves.Add(1) }}
	w.d = Dialer{Config: cfg, Trace: trace}
	w.listener = listen(t, ListenConfig{Config: cfg, Trace: trace}, "west", "10.0.0.2:0")
	go w.serve()
	return w
}

// run has connections of all kinds at work, and breaks things, for so long, and at least once
// after there is a connection. Then everything has to come to its end.
func (w *lossRound) run(length time.Duration) {
	if w.r.IntN(2) == 0 { // goroutines run in the order in which they were woken, not all at once
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	most := 8 << w.r.IntN(6)
	if w.storm {
		most = 256
	}
	var all sync.WaitGroup
	for i := range most {
		own := rand.New(rand.NewPCG(w.r.Uint64(), uint64(i)))
		all.Go(func() { w.work(own, i) })
	}
	if w.r.IntN(4) > 0 { // else the first handshakes have faults, too
		w.within(func() { <-w.connected }, "dials that do not end")
	}
	for end := time.Now().Add(length); !w.t.Failed(); {
		time.Sleep(time.Duration(w.r.IntN(int(time.Millisecond) << w.r.IntN(9))))
		if w.r.IntN(2) == 0 {
			w.sing()
			time.Sleep(time.Duration(w.r.IntN(int(time.Millisecond))))
		}
		w.fault()
		w.sing()
		if !time.Now().Before(end) {
			break
		}
	}
	w.fatal.Store(0)
	w.lost.Store(0)
	w.cancel()
	w.within(all.Wait, "connections that do not end")
	w.within(func() {
		for _ = w.listener.Close(); w.n.Open() > 0; time.Sleep(10 * time.Millisecond) {
			CloseIdleLinks()
		}
	}, "links that do not end")
	require.Zero(w.t, w.n.RNR(), "messages that found no receive posted")
}

// within fails the test with all stacks when something has an end only because it hangs: all
// that it may wait for is over in a fraction of that time.
func (w *lossRound) within(f func(), what string) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(12 * time.Minute):
		b := make([]byte, 8<<20)
		w.t.Fatalf("%s: %v\n%s", what, Links(), b[:runtime.Stack(b, true)])
	}
}

// sing has half of those who wait for it write at once.
func (w *lossRound) sing() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.chorus)
	w.chorus = make(chan struct{})
}

func (w *lossRound) note() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.chorus
}

// fault breaks something, for a short while if it lasts.
func (w *lossRound) fault() {
	r := w.r
	all := w.n.Endpoints()
	if len(all) == 0 {
		return
	}
	w.sum.faults.Add(1)
	e := all[r.IntN(len(all))]
	if r.IntN(3) == 0 {
		e = all[len(all)-1] // it may be of a link that is about to go on
	}
	pause := func() { time.Sleep(time.Duration(r.IntN(int(time.Millisecond) << r.IntN(8)))) }
	switch x := r.IntN(23); {
	case w.storm && r.IntN(8) > 0:
		w.loseUnderWay(e, pause)
	case x < 5:
		w.fatal.Store(int64(1 + r.IntN(1<<r.IntN(10))))
	case x < 7:
		e.Fail(fabric.ErrQueuePair)
	case x < 8:
		if peer := w.n.Find(e.RemoteAddr(), e.LocalAddr()); peer != nil {
			peer.Fail(fabric.ErrQueuePair)
		}
		e.Fail(fabric.ErrQueuePair)
	case x < 11:
		w.loseUnderWay(e, pause)
	case x < 14:
		e.HoldReceives(true)
		pause()
		if r.IntN(2) == 0 {
			e.Fail(fabric.ErrQueuePair)
		}
		e.HoldReceives(false)
	case x < 15:
		w.n.PortDown()
	case x < 16:
		card := lossCards[r.IntN(len(lossCards))]
		w.n.CutCard(card, true)
		pause()
		w.n.CutCard(card, false)
	case x < 22:
		w.n.Cut(true)
		w.sing()
		pause() // what is written meanwhile is lost, and has to be sent again
		if r.IntN(4) > 0 {
			e.Fail(fabric.ErrQueuePair)
			pause()
			w.sing() // what is written now waits for the next queue pair, behind that
		}
		w.n.Cut(false)
	default:
		w.lost.Store(int64(1 + r.IntN(2)))
	}
}

// loseUnderWay has an end lose what is written in a while, mostly together with its queue pair.
// More is written until there is another, which is soon.
func (w *lossRound) loseUnderWay(e *sim.Endpoint, pause func()) {
	e.HoldSends(true)
	w.sing()
	pause()
	if w.r.IntN(4) > 0 {
		e.Fail(fabric.ErrQueuePair)
		w.sing()
	}
	e.HoldSends(false)
}

func (w *lossRound) over() bool { return w.ctx.Err() != nil || w.t.Failed() }

// lossKind is what a connection is for: what the dialing end does, and what the other.
type lossKind struct {
	name         string
	dials, waits func(w *lossRound, c *lossConn) error
}

var lossKinds = []lossKind{
	{"talk", (*lossRound).asks, (*lossRound).answers},
	{"chorus", (*lossRound).sings, (*lossRound).answers},
	{"upload", (*lossRound).sends, (*lossRound).receives},
	{"download", (*lossRound).receives, (*lossRound).sends},
	{"both ways", (*lossRound).both, (*lossRound).both},
	{"short", (*lossRound).asksOnce, (*lossRound).answers},
}

// work makes one connection after the other until the round is over.
func (w *lossRound) work(r *rand.Rand, i int) {
	kind := w.most
	if i < len(lossKinds) {
		kind = i
	}
	for !w.over() {
		seed := r.Uint64()
		c, err := w.dial(seed, kind)
		if err != nil {
			w.sum.failedDials.Add(1) // the faults were its handshake's
			continue
		}
		w.sum.connections.Add(1)
		w.first.Do(func() { close(w.connected) })
		w.exchange(c, kind, seed, true, lossKinds[kind].dials)
	}
}

// dial makes a connection and says what it is for. Until the listener has answered it may not
// know the connection.
func (w *lossRound) dial(seed uint64, kind int) (*Conn, error) {
	c, err := w.d.DialContext(w.ctx, "east", w.listener.Addr().String())
	if err != nil {
		return nil, err
	}
	if _, err = c.Write(append(binary.LittleEndian.AppendUint64(nil, seed), byte(kind))); err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c.(*Conn), nil
}

func (w *lossRound) serve() {
	for {
		c, err := w.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			var first [9]byte
			_, err := io.ReadFull(c, first[:])
			if err == nil {
				_, err = c.Write([]byte{1})
			}
			if err != nil {
				_ = c.Close() // the dialer has given up
				return
			}
			w.exchange(c.(*Conn), int(first[8]), binary.LittleEndian.Uint64(first[:]), false, lossKinds[first[8]].waits)
		}()
	}
}

// exchange does what a connection is for, and sees that both directions end in order.
func (w *lossRound) exchange(c *Conn, kind int, seed uint64, dialed bool, what func(w *lossRound, c *lossConn) error) {
	x := &lossConn{Conn: c, w: w, out: seed, in: ^seed}
	if !dialed {
		x.out, x.in = x.in, x.out
	}
	x.r = rand.New(rand.NewPCG(x.out, 0))
	err := what(w, x)
	if err == nil {
		err = x.end()
	}
	if err != nil {
		w.t.Errorf("%s, dialed %t: %v", lossKinds[kind].name, dialed, err)
		auto.Reset(c)
	}
}

// lossConn is one end of a connection: each direction carries bytes that tell their place.
type lossConn struct {
	*Conn
	w              *lossRound
	r              *rand.Rand
	out, in        uint64
	sent, received uint64
	buffer         *Buffer
}

func lossByte(of, at uint64) byte { return byte((at + of) * 0x9e37_79b9_7f4a_7c15 >> 56) }

// send writes n bytes, in one of the ways that there are.
func (c *lossConn) send(n int) error {
	b := make([]byte, n)
	for i := range b {
		b[i] = lossByte(c.out, c.sent+uint64(i))
	}
	for len(b) > 0 {
		accepted, err := c.write(b)
		c.sent += uint64(accepted)
		b = b[accepted:]
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = c.SetWriteDeadline(time.Time{})
		}
		if err != nil {
			return fmt.Errorf("after %d bytes sent: %w", c.sent, err)
		}
	}
	c.w.sum.bytes.Add(int64(n))
	return nil
}

func (c *lossConn) write(b []byte) (int, error) {
	switch c.r.IntN(8) {
	case 0:
		cut := c.r.IntN(len(b) + 1)
		bufs := net.Buffers{b[:cut], b[cut:]}
		n, err := c.WriteBuffers(&bufs)
		return int(n), err
	case 1:
		if c.buffer == nil {
			var err error
			if c.buffer, err = c.NewBuffer(32 << 10); err != nil {
				return 0, err
			}
		}
		c.buffer.Wait()
		n := min(len(b), 32<<10)
		if _, err := c.buffer.Write(b[:n]); err != nil {
			return 0, err
		}
		for c.buffer.Len() > 0 {
			c.buffer.Wait()
			if _, err := c.WriteBuffer(c.buffer); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				return 0, err
			}
			_ = c.SetWriteDeadline(time.Time{})
		}
		return n, nil
	case 2:
		_ = c.SetWriteDeadline(time.Now().Add(time.Duration(c.r.IntN(int(20 * time.Millisecond)))))
	}
	n, err := c.Write(b)
	clear(b[:n]) // Write no longer needs them
	return n, err
}

// receive reads some bytes, n at most, and checks them.
func (c *lossConn) receive(n int) (int, error) {
	b := make([]byte, n)
	if c.r.IntN(4) == 0 {
		_ = c.SetReadDeadline(time.Now().Add(time.Duration(c.r.IntN(int(20 * time.Millisecond)))))
	}
	var err error
	if c.r.IntN(4) == 0 {
		var p []byte
		p, err = c.Peek(1)
		n = copy(b, p)
		if n > 0 {
			_, err = c.Discard(n)
		}
	} else {
		n, err = c.Read(b)
	}
	for i, got := range b[:n] {
		if want := lossByte(c.in, c.received+uint64(i)); got != want {
			return n, fmt.Errorf("byte %d is %#x, want %#x", c.received+uint64(i), got, want)
		}
	}
	c.received += uint64(n)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = c.SetReadDeadline(time.Time{})
	}
	return n, err
}

// receiveAll reads n bytes.
func (c *lossConn) receiveAll(n int) error {
	for n > 0 {
		got, err := c.receive(n)
		if err != nil {
			return fmt.Errorf("after %d bytes received: %w", c.received, err)
		}
		n -= got
	}
	return nil
}

// drain reads until the peer's end.
func (c *lossConn) drain() error {
	for {
		if _, err := c.receive(64 << 10); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("after %d bytes received: %w", c.received, err)
		}
	}
}

// end ends both directions, and closes.
func (c *lossConn) end() error {
	return errors.Join(c.endWrites(), c.drain(), c.Close())
}

// endWrites ends the direction in which c writes.
func (c *lossConn) endWrites() error {
	if c.buffer != nil {
		_ = c.buffer.Close()
	}
	return c.CloseWrite()
}

// size draws the size of a message: mostly a small one.
func (c *lossConn) size() int { return 1 + c.r.IntN(1<<c.r.IntN(15)) }

func (w *lossRound) asks(c *lossConn) error {
	for !w.over() {
		if err := c.ask(c.size()); err != nil {
			return err
		}
	}
	return nil
}

func (w *lossRound) asksOnce(c *lossConn) error { return c.ask(1) }

func (w *lossRound) sings(c *lossConn) error {
	for !w.over() {
		select {
		case <-w.note():
		case <-w.ctx.Done():
		}
		if c.r.IntN(2) == 0 {
			continue // some are left to write while these wait for their answers
		}
		if err := c.ask(1 + c.r.IntN(100)); err != nil {
			return err
		}
	}
	return nil
}

// ask sends a message, with its length, and reads an answer of the same length.
func (c *lossConn) ask(n int) error {
	if err := c.send(n); err != nil {
		return err
	}
	c.w.sum.exchanges.Add(1)
	return c.receiveAll(n)
}

// answers sends as much as arrives.
func (w *lossRound) answers(c *lossConn) error {
	for {
		n, err := c.receive(1 << 15)
		if err == nil && n > 0 {
			err = c.send(n)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w *lossRound) sends(c *lossConn) error {
	for !w.over() && c.sent < 1<<24 {
		if err := c.send(1 + c.r.IntN(1<<c.r.IntN(19))); err != nil {
			return err
		}
	}
	return nil
}

// receives leaves all to end.
func (w *lossRound) receives(*lossConn) error { return nil }

// both sends and receives at once.
func (w *lossRound) both(c *lossConn) error {
	own := *c // for one direction each
	own.r = rand.New(rand.NewPCG(c.in, 1))
	received := make(chan error, 1)
	go func() { received <- own.drain() }()
	return errors.Join(w.sends(c), c.endWrites(), <-received)
}

// TestTransferOverQueuePairsThatFail sends both ways over a card that fails queue pairs all the time
// (tools/idealcard -faults qp=…), whatever other manners it has, until it has failed one at least: all
// bytes arrive, and none twice.
func TestTransferOverQueuePairsThatFail(t *testing.T) {
	if !strings.Contains(os.Getenv("IDEAL_FAULTS"), "qp=") {
		t.Skip("it is for tools/idealcard -faults qp=RATE")
	}
	h := rdmaHost(t)
	before := Totals()["rdma"].LinksMoved
	client, server := connect(t, h, h.listen(t, ListenConfig{}), &Dialer{})
	for round := uint64(0); Totals()["rdma"].LinksMoved == before && !t.Failed(); round++ {
		var all sync.WaitGroup
		for i, way := range [][2]net.Conn{{client, server}, {server, client}} {
			all.Go(func() { transferInPieces(t, way[0], way[1], 2*round+uint64(i)) })
		}
		all.Wait()
	}
}

// transferInPieces sends 4 MiB in Writes of up to 8000 bytes.
func transferInPieces(t *testing.T, from io.Writer, to io.Reader, seed uint64) {
	want := make([]byte, 4<<20)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(want)
	sent := make(chan error, 1)
	go func() {
		r := rand.New(rand.NewPCG(1, seed))
		for left := want; len(left) > 0; {
			n := min(1+r.IntN(8000), len(left))
			if _, err := from.Write(left[:n]); err != nil {
				sent <- err
				return
			}
			left = left[n:]
		}
		sent <- nil
	}()
	got := make([]byte, len(want))
	_, err := io.ReadFull(to, got)
	assert.NoError(t, errors.Join(err, <-sent))
	assert.True(t, bytes.Equal(want, got))
}
