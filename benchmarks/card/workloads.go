package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/perf"
)

// workload is what is measured, and on which card.
type workload struct {
	key, name string
	raw       string // the name that the program in C has for it, if not the key
	measure   func(*end) (perf.Sample, error)
	latency   time.Duration
	dma       string
	sizes     []int
	conns     []int
	peers     []string // nil for all
	procs     int      // GOMAXPROCS, if not that of the machine
	rate      bool     // bytes per second are of interest, not times
}

// Of GOMAXPROCS goroutines, one less may poll at once, and here both ends share them.
const bothPoll = 4

const (
	row      = 40 // events
	eventGap = 50 * time.Microsecond
	bulk     = 1 << 20 // of a Buffer
)

var (
	one      = []int{1}
	chart    = []int{64, 512, 4 << 10, 64 << 10, 1 << 20}
	networks = []string{rdma, busy, parked, tcp}
)

// Payloads arrive (copy) where somebody looks at them; else DMA is free.
var workloads = append([]workload{
	{key: "turn", name: "Write and Read of 64 B in one goroutine", measure: turn, dma: "copy", sizes: []int{64}, conns: one},
	{key: "ping-pong", name: "ping-pong, half a round trip", measure: pingPong,
		dma: "free", sizes: chart, conns: one, procs: bothPoll},
	{key: "ping-pong-1us", name: "ping-pong, half a round trip, a card 1 µs away", raw: "ping-pong", measure: pingPong,
		latency: time.Microsecond, dma: "free", sizes: []int{64}, conns: one, procs: bothPoll, peers: []string{raw, rdma, busy, parked}},
	{key: "stream", name: "stream, one copy at each end", measure: stream, dma: "free", sizes: chart, conns: one, rate: true},
	{key: "lent", name: "WriteBuffer and Peek of 1 MiB, no copy", measure: lent,
		dma: "free", sizes: []int{bulk}, conns: one, peers: []string{rdma, busy, parked}, rate: true},
	{key: "connect", name: "dial, one byte there and back, close", measure: connect, dma: "copy", sizes: []int{1}, conns: one, peers: networks},
	{key: "http", name: "net/http GET of 1 KiB, between two replies", measure: gets,
		dma: "copy", sizes: []int{1 << 10}, conns: []int{1, 16, 64}, peers: networks},
}, events(1, 4, 10, row)...)

// events are one-way messages some time after one another: the first in a row, and others.
func events(positions ...int) (all []workload) {
	for _, n := range positions {
		all = append(all, workload{
			key: fmt.Sprintf("event-%d", n), name: fmt.Sprintf("message %d of a row, %v after one another, from Write to Read", n, eventGap),
			measure: func(e *end) (perf.Sample, error) { return event(e, n) },
			dma:     "copy", sizes: []int{64}, conns: one, procs: bothPoll,
		})
	}
	return all
}

// rawName is what the program in C calls the workload.
func (w *workload) rawName() string {
	if w.raw != "" {
		return w.raw
	}
	return w.key
}

func turn(e *end) (s perf.Sample, err error) {
	a, b, err := e.pair()
	if err != nil {
		return s, err
	}
	from, to := make([]byte, e.Size), make([]byte, e.Size)
	return e.measure(e.Size, 64, func() error {
		if _, err := a.Write(from); err != nil {
			return err
		}
		_, err := io.ReadFull(b, to)
		return err
	})
}

// reply sends back each message of a size.
func reply(size int) func(net.Conn) error {
	return func(c net.Conn) error {
		buf := make([]byte, size)
		for {
			if _, err := io.ReadFull(c, buf); err != nil {
				return err
			}
			if _, err := c.Write(buf); err != nil {
				return err
			}
		}
	}
}

// ask sends a message and waits for the reply.
func ask(c net.Conn, buf []byte) error {
	if _, err := c.Write(buf); err != nil {
		return err
	}
	_, err := io.ReadFull(c, buf)
	return err
}

func pingPong(e *end) (s perf.Sample, err error) {
	go e.serve(reply(e.Size))
	c, err := e.dial(context.Background())
	if err != nil {
		return s, err
	}
	buf := make([]byte, e.Size)
	s, err = e.measure(2*e.Size, several(e.Size), func() error { return ask(c, buf) })
	return split(2, s, err)
}

// several is how many operations are timed together.
func several(size int) int { return max(4, min(64, 256<<10/size)) }

func stream(e *end) (s perf.Sample, err error) {
	go e.serve(func(c net.Conn) error {
		buf := make([]byte, max(e.Size, 64<<10))
		for {
			if _, err := c.Read(buf); err != nil {
				return err
			}
		}
	})
	c, err := e.dial(context.Background())
	if err != nil {
		return s, err
	}
	buf := make([]byte, e.Size)
	return e.measure(e.Size, several(e.Size), func() error {
		_, err := c.Write(buf)
		return err
	})
}

// filler fills buffers as a file would whose device writes to memory by itself.
type filler struct{}

func (filler) Read(p []byte) (int, error) { return len(p), nil }

// lent is a stream in which neither end copies. What a program does with its bytes is left out.
func lent(e *end) (s perf.Sample, err error) {
	go e.serve(func(c net.Conn) error { return drop(c.(*ringnet.Conn)) })
	conn, err := e.dial(context.Background())
	if err != nil {
		return s, err
	}
	c := conn.(*ringnet.Conn)
	var buffers [2]*ringnet.Buffer
	for i := range buffers {
		if buffers[i], err = c.NewBuffer(e.Size); err != nil {
			return s, err
		}
	}
	n := 0
	return e.measure(e.Size, several(e.Size), func() error {
		b := buffers[n%len(buffers)]
		n++
		b.Wait()
		if _, err := b.Fill(filler{}); err != nil {
			return err
		}
		_, err := c.WriteBuffer(b)
		return err
	})
}

// drop drops what arrives.
func drop(c *ringnet.Conn) error {
	for {
		if _, err := c.Peek(1); err != nil {
			return err
		}
		if _, err := c.Discard(c.Buffered()); err != nil {
			return err
		}
	}
}

func connect(e *end) (perf.Sample, error) {
	go e.serve(reply(1))
	buf := make([]byte, 1)
	return e.measure(2, 1, func() error {
		c, err := e.dial(context.Background())
		if err != nil {
			return err
		}
		defer c.Close()
		return ask(c, buf)
	})
}

// perClient is how many requests of each client are timed together.
const perClient = 32

func gets(e *end) (s perf.Sample, err error) {
	body := bytes.Repeat([]byte("b"), e.Size)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })}
	go func() { _ = server.Serve(e.l) }()
	client := &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: e.Conns,
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return e.dial(ctx) },
	}}
	get := func() error {
		r, err := client.Get("http://card/")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n != int64(e.Size) {
			return fmt.Errorf("GET: %d bytes, %w", n, err)
		}
		return nil
	}
	n := e.Conns * perClient
	s, err = e.measure(e.Size*n, 1, func() error { return atOnce(e.Conns, func() error { return repeat(perClient, get) }) })
	return split(n, s, err)
}

// atOnce does something in n goroutines at once.
func atOnce(n int, do func() error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = do() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// event measures a message of each row, which has the time of its Write. The reader answers each
// row.
func event(e *end, position int) (s perf.Sample, err error) {
	a, b, err := e.pair()
	if err != nil {
		return s, err
	}
	m := e.start(1)
	go func() {
		for {
			if err := writeRow(a, make([]byte, e.Size), m.started); err != nil {
				return
			}
		}
	}()
	for buf := make([]byte, e.Size); len(m.times) == 0 || time.Since(m.started) < e.slice; {
		for n := 1; n <= row; n++ {
			if _, err := io.ReadFull(b, buf); err != nil {
				return s, err
			}
			if n == position {
				m.times = append(m.times, time.Since(m.started)-time.Duration(binary.LittleEndian.Uint64(buf)))
			}
		}
		if _, err := b.Write(buf); err != nil {
			return s, err
		}
	}
	s = m.sample(e.Size)
	s.Ops, s.Bytes = row*s.Ops, row*s.Bytes // all that were sent
	return s, nil
}

func writeRow(c net.Conn, buf []byte, zero time.Time) error {
	next := time.Now()
	for range row {
		next = perf.Compute(next, eventGap)
		binary.LittleEndian.PutUint64(buf, uint64(time.Since(zero)))
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
	_, err := io.ReadFull(c, buf)
	return err
}
