package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/internal/perf"
)

type pingCommand struct {
	Address  hostPort      `arg:"" optional:"" name:"host:port" help:"What to connect to: ringnet ping --listen, or any listener, which is not sent anything."`
	Listen   *listenURL    `placeholder:"NETWORK://HOST:PORT" help:"Answer those who ping, as in auto://:7471 over all networks that this host has."`
	Datagram bool          `help:"Send and answer datagrams: of shm, rdma and tcp those of shm-udp, rdma-udp and udp."`
	Networks []string      `enum:"shm,rdma,tcp" default:"shm,rdma,tcp" placeholder:"NETWORK" help:"Connect over these: shm, rdma, tcp (all)."`
	Count    int           `short:"n" default:"1000" help:"Round trips over each network (${default})."`
	Size     int           `short:"s" default:"64" help:"Bytes there and back (${default})."`
	SetUps   int           `default:"10" help:"Connections made over each network (${default}), of which the first makes the link."`
	Timeout  time.Duration `default:"5s" help:"Wait so long for a connection or an answer (${default}); of datagrams, for the first that is not lost."`
}

// maxSize is the largest message, in bytes.
const maxSize = 1 << 30

// greeting is what ringnet ping --listen sends first on each connection. After it, it sends
// back what it receives.
const greeting = "ringnet ping 1\n"

// Run answers or pings.
func (c *pingCommand) Run(ctx context.Context, s *streams) error {
	switch {
	case (c.Address == "") == (c.Listen == nil):
		return misuseError{errors.New("want HOST:PORT to connect to, or --listen NETWORK://HOST:PORT to answer")}
	case c.Count < 1 || c.Size < 1 || c.SetUps < 1 || c.Timeout <= 0:
		return misuseError{errors.New("--count, --size, --set-ups and --timeout want positive values")}
	case c.Size > maxSize:
		return misuseError{fmt.Errorf("--size=%d: want %d at most", c.Size, maxSize)}
	case c.Datagram && (c.Size < datagramHeader || c.Size > maxDatagram):
		return misuseError{fmt.Errorf("--size of datagrams is from %d to %d", datagramHeader, maxDatagram)}
	case c.Listen != nil && c.Datagram:
		return c.answerDatagrams(ctx, s)
	case c.Listen != nil:
		return c.answer(ctx, s)
	}
	return c.measure(ctx, s)
}

// measure pings over one network after the other, until ctx ends.
func (c *pingCommand) measure(ctx context.Context, s *streams) error {
	ping, print := c.ping, c.print
	if c.Datagram {
		ping, print = c.pingDatagrams, c.printDatagrams
	}
	progress := perf.NewProgress(s.err).OnlyOnTerminal()
	var results []pingResult
	for _, network := range c.Networks {
		results = append(results, ping(ctx, network, progress))
		if ctx.Err() != nil {
			break
		}
	}
	progress.End()
	if s.json {
		if err := writeJSON(s.out, results); err != nil {
			return err
		}
	} else {
		print(s.out, results)
	}
	switch {
	case !slices.ContainsFunc(results, pingResult.reached):
		return fmt.Errorf("%s cannot be reached", c.Address)
	case slices.ContainsFunc(results, func(r pingResult) bool { return r.Ended != "" }):
		return fmt.Errorf("round trips with %s ended early", c.Address)
	}
	return nil
}

// tripsShown is how often progress is shown.
const tripsShown = time.Second / 2

// answer serves those who ping until the context ends.
func (c *pingCommand) answer(ctx context.Context, s *streams) error {
	l, err := c.Listen.Listen(ctx, endpoint.Options{})
	if err != nil {
		return err
	}
	log := s.logger(false)
	log.Info("answers", "address", l.Addr().String())
	return acceptAll(ctx, l, log, func(conn net.Conn) {
		if _, err := io.WriteString(conn, greeting); err == nil {
			_, _ = io.Copy(conn, conn)
		}
	})
}

// pingResult is what was measured over a network.
type pingResult struct {
	Network    string  `json:"network"`
	Error      string  `json:"error,omitempty"`       // why the address cannot be reached
	NoAnswer   string  `json:"no_answer,omitempty"`   // why there are no round trips, if it can be reached
	Ended      string  `json:"ended,omitempty"`       // why there are no more
	FirstSetUp float64 `json:"first_set_up,omitzero"` // µs: of the first connection, and so of the link
	SetUp      *spread `json:"set_up,omitempty"`      // of the others
	RoundTrip  *spread `json:"round_trip,omitempty"`

	// Of datagrams:
	First float64 `json:"first,omitzero"` // µs: of the first round trip, during which the address is resolved
	Lost  int     `json:"lost,omitzero"`  // round trips that were lost, besides First and RoundTrip
}

func (r pingResult) reached() bool { return r.Error == "" }

// spread is the distribution of times, in µs.
type spread struct {
	Count      int     `json:"count"`
	Min        float64 `json:"min"`
	Median     float64 `json:"median"`
	MedianLow  float64 `json:"median_low,omitzero"`  // the interval that holds the median with a confidence of 95 %;
	MedianHigh float64 `json:"median_high,omitzero"` // 0 if there are too few times
	P90        float64 `json:"p90"`
	P99        float64 `json:"p99"`
	Max        float64 `json:"max"`
}

// newSpread returns nil if there are no times.
func newSpread(times []time.Duration) *spread {
	if len(times) == 0 {
		return nil
	}
	d := perf.NewDistribution(times)
	at := func(q float64) float64 { return d.Quantile(q) / 1e3 }
	least, most := d.Bounds()
	median := perf.NewEstimate(d.Xs)
	return &spread{len(times), least / 1e3, at(0.5), median.Low / 1e3, median.High / 1e3, at(0.9), at(0.99), most / 1e3}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// end says why round trips have ended, unless they were complete, or ctx has ended them.
func (r *pingResult) end(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		r.Ended = err.Error()
	}
}

// ping measures over a network.
func (c *pingCommand) ping(ctx context.Context, network string, progress *perf.Progress) pingResult {
	r := pingResult{Network: network}
	conn, times, err := c.connect(ctx, network)
	if len(times) > 0 {
		r.FirstSetUp, r.SetUp = micros(times[0]), newSpread(times[1:])
	}
	if err != nil {
		r.Error = err.Error()
		return r
	}
	defer endpoint.Reset(conn)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := c.greeted(conn); err != nil {
		r.NoAnswer = fmt.Sprintf("%v: want ringnet ping --listen there", err)
		return r
	}
	trips, err := c.roundTrips(ctx, conn, func(n int) { progress.Show("%s: %d of %d round trips", network, n, c.Count) })
	r.RoundTrip = newSpread(trips)
	r.end(ctx, err)
	return r
}

// connect makes some connections, one after the other, and returns the last and how
// long each took.
func (c *pingCommand) connect(ctx context.Context, network string) (net.Conn, []time.Duration, error) {
	dial := endpoint.Endpoint{Network: network, Address: string(c.Address)}.Dialer(endpoint.Options{})
	var times []time.Duration
	for {
		ctx, cancel := context.WithTimeout(ctx, c.Timeout)
		began := time.Now()
		conn, _, err := dial(ctx)
		took := time.Since(began)
		cancel()
		if err != nil {
			return nil, times, err
		}
		if times = append(times, took); len(times) == c.SetUps {
			return conn, times, nil
		}
		_ = conn.Close()
	}
}

// greeted waits for the greeting.
func (c *pingCommand) greeted(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(min(c.Timeout, time.Second))); err != nil {
		return err
	}
	got := make([]byte, len(greeting))
	if _, err := io.ReadFull(conn, got); err != nil {
		return fmt.Errorf("no greeting: %w", err)
	} else if string(got) != greeting {
		return fmt.Errorf("another greeting: %q", got)
	}
	return nil
}

// roundTrips returns how long each took, up to the first that fails, or until ctx ends. It
// calls show now and then with how many there were.
func (c *pingCommand) roundTrips(ctx context.Context, conn net.Conn, show func(int)) ([]time.Duration, error) {
	sent, got := make([]byte, c.Size), make([]byte, c.Size)
	var times []time.Duration
	shown := time.Now()
	for len(times) < c.Count && ctx.Err() == nil {
		began := time.Now()
		if began.Sub(shown) >= tripsShown {
			show(len(times))
			shown = began
		}
		if err := conn.SetDeadline(began.Add(c.Timeout)); err != nil {
			return times, err
		}
		wrote := make(chan error, 1)
		write := func() { _, err := conn.Write(sent); wrote <- err }
		if c.Size <= atOnce {
			write()
		} else {
			go write() // the other end sends back before it has received all
		}
		if _, err := io.ReadFull(conn, got); err != nil {
			return times, err
		}
		if err := <-wrote; err != nil {
			return times, err
		}
		times = append(times, time.Since(began))
	}
	return times, nil
}

// atOnce is how many bytes can be written before the other end reads.
const atOnce = 4 << 10

func (c *pingCommand) print(w io.Writer, results []pingResult) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	if slices.ContainsFunc(results, pingResult.reached) {
		fmt.Fprintf(t, "\tset-up, first\tmedian\tp99\tround trip of %s, min\tmedian\tp90\tp99\tmax\t\n", perf.Size(c.Size))
	}
	for _, r := range results {
		if !r.reached() {
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t", r.Network, inMicros(r.FirstSetUp))
		printSpread(t, r.SetUp, func(s *spread) []string { return []string{s.center(), inMicros(s.P99)} }, 2)
		printSpread(t, r.RoundTrip, func(s *spread) []string {
			return []string{inMicros(s.Min), s.center(), inMicros(s.P90), inMicros(s.P99), inMicros(s.Max)}
		}, 5)
		fmt.Fprintln(t)
	}
	_ = t.Flush()
	printFailures(w, results)
}

// printFailures prints why networks have no results, or not all.
func printFailures(w io.Writer, results []pingResult) {
	for _, r := range results {
		switch {
		case !r.reached():
			fmt.Fprintf(w, "not over %s: %s\n", r.Network, r.Error)
		case r.NoAnswer != "":
			fmt.Fprintf(w, "no round trips over %s: %s\n", r.Network, r.NoAnswer)
		case r.Ended != "":
			fmt.Fprintf(w, "round trips over %s ended: %s\n", r.Network, r.Ended)
		}
	}
}

func inMicros(us float64) string { return perf.Nanos(us * 1e3) }

// center is the median with its interval.
func (s *spread) center() string {
	return perf.Estimate{Median: s.Median, Low: s.MedianLow, High: s.MedianHigh}.WithInterval(inMicros(s.Median))
}

// printSpread prints n columns of a spread, which are empty if it is nil.
func printSpread(w io.Writer, s *spread, columns func(*spread) []string, n int) {
	values := make([]string, n)
	if s != nil {
		values = columns(s)
	}
	for _, v := range values {
		fmt.Fprintf(w, "%s\t", v)
	}
}
