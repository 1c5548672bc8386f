package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/perf"
)

// end is how this process dials and listens: it is both ends.
type end struct {
	peer
	perf.Cell
	slice time.Duration
	l     net.Listener
}

// address has a free port of the card, which has all addresses of this host.
const address = "127.0.0.1:0"

// measureInside measures the cell of a job, and prints what came out.
func measureInside(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	w, err := findWorkload(j.Cell.Workload)
	if err != nil {
		return err
	}
	e := &end{Cell: j.Cell, slice: j.Slice}
	e.peer = peers[slices.IndexFunc(peers, func(p peer) bool { return p.Key == j.Cell.Peer })]
	if e.l, err = e.listen(); err != nil {
		return err
	}
	s, err := w.measure(e)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(s)
}

func (e *end) listen() (net.Listener, error) {
	if e.network == tcp {
		return net.Listen(tcp, address)
	}
	return (&ringnet.ListenConfig{Config: e.config}).Listen(context.Background(), e.network, address)
}

func (e *end) dial(ctx context.Context) (net.Conn, error) {
	if e.network == tcp {
		return new(net.Dialer).DialContext(ctx, tcp, e.l.Addr().String())
	}
	return (&ringnet.Dialer{Config: e.config}).DialContext(ctx, e.network, e.l.Addr().String())
}

// serve serves each connection in a goroutine of its own.
func (e *end) serve(handle func(net.Conn) error) {
	for {
		c, err := e.l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_ = handle(c) // the other end has closed it
		}()
	}
}

// pair is a connection, and its other end.
func (e *end) pair() (a, b net.Conn, err error) {
	accepted := make(chan net.Conn, 1)
	go e.serve(func(c net.Conn) error {
		accepted <- c
		select {}
	})
	if a, err = e.dial(context.Background()); err != nil {
		return nil, nil, err
	}
	return a, <-accepted, nil
}

// meter measures operations. The clock is read once for several of them.
type meter struct {
	e       *end
	several int
	times   []time.Duration // of each several operations
	started time.Time
	cpu     float64
}

// measure does an operation again and again for a slice of time, after a quarter of one
// that is not measured, in which rings grow to their size.
func (e *end) measure(bytes, several int, do func() error) (perf.Sample, error) {
	for start := time.Now(); time.Since(start) < e.slice/4; {
		if err := repeat(several, do); err != nil {
			return perf.Sample{}, err
		}
	}
	m := e.start(several)
	for now := m.started; now.Sub(m.started) < e.slice; {
		if err := repeat(several, do); err != nil {
			return perf.Sample{}, err
		}
		next := time.Now()
		m.times = append(m.times, next.Sub(now))
		now = next
	}
	return m.sample(bytes), nil
}

func repeat(n int, do func() error) error {
	for range n {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

func (e *end) start(several int) *meter {
	return &meter{e: e, several: several, started: time.Now(), cpu: perf.OwnUsage().CPU}
}

// sample is what has been measured: operations of so many bytes.
func (m *meter) sample(bytes int) perf.Sample {
	ops := len(m.times) * m.several
	p50 := perf.NewDistribution(m.times).Quantile(0.5) / float64(m.several)
	return perf.Sample{
		Ops: ops, Bytes: ops * bytes, Seconds: time.Since(m.started).Seconds(), P50: p50, CPU: perf.OwnUsage().CPU - m.cpu,
	}
}

// split is a sample of operations that are n each.
func split(n int, s perf.Sample, err error) (perf.Sample, error) {
	s.Ops *= n
	s.P50 /= float64(n)
	return s, err
}

func findWorkload(key string) (*workload, error) {
	i := slices.IndexFunc(workloads, func(w workload) bool { return w.key == key })
	if i < 0 {
		return nil, fmt.Errorf("no workload is called %q", key)
	}
	return &workloads[i], nil
}
